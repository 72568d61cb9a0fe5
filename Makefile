# The one door: people and CI use the same targets. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := python3.11 python3 python3.12 python3.13 python3.14
JOBS ?= 2
ARGS ?=

.PHONY: help install models demo test verify gpu-check check fmt bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with everything a developer needs

# The constraints hold torch at one release, which has wheels for Python 3.11 everywhere; so 3.11 comes first.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	  for python in $(PYTHON) $(PYTHONS); do \
	    if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      echo "Making $(VENV) with $$("$$python" --version)"; \
	      "$$python" -m venv $(VENV); break; \
	    fi; \
	  done; \
	fi
	@[ -x $(BIN)/python ] || { echo "make: needs Python 3.11 or newer with venv (Debian: apt-get install python3 python3-venv)" >&2; exit 1; }
	@echo "Installing; the first time takes some minutes, most of them for torch"
	@$(BIN)/python -m pip install --disable-pip-version-check $(if $(MAKE_TERMOUT),,--quiet) --editable '.[dev]' --constraint constraints.txt
	@touch $@

models: install ## Fetch the models that the demo and the engine tests use
	$(BIN)/ccs models prepare $(ARGS) </dev/null

demo: install ## Run text, vision and audio prompts at once on this machine
	$(BIN)/ccs demo $(ARGS) </dev/null

test: models check ## Run the checks and all tests
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS) </dev/null

verify: models ## Measure drift and leaks of the prepared models
	$(BIN)/ccs verify $(ARGS) </dev/null

gpu-check: export PYTHONPATH := $(CURDIR):$(CURDIR)/broker:$(PYTHONPATH)
gpu-check: ## Check what only a GPU can show, with .venv or else python3; installs nothing
	@python="$$([ -x $(BIN)/python ] && echo $(BIN)/python || echo python3)"; \
	"$$python" -m tests.gpu.about && \
	"$$python" -m pytest -c tests/gpu/pytest.ini -rs -s tests/gpu $(ARGS) </dev/null

check: install ## Lint, format, types and import directions, without changing a file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fmt: install ## Format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## Measure what the README and the docs state in numbers
	$(BIN)/python -m benchmarks $(ARGS) </dev/null

clean: ## Remove what the tools left behind, but not .venv
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
