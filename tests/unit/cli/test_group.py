"""The command itself: what it lists, how it loads, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, version

import click
import pytest
from click.testing import CliRunner

from ccs_broker.cli import group
from ccs_broker.cli.group import ccs
from ccs_broker.errors import NotFoundError

COMMANDS = (
    "submit", "stream", "result", "status", "cancel", "queues", "workers", "dead", "demo", "up", "worker", "models",
)  # fmt: skip
GROUPS = {"dead": ("list", "show", "replay", "purge"), "models": ("list", "prepare")}
SUBCOMMANDS = [(name, inner) for name, inners in GROUPS.items() for inner in inners]
HEAVY = {"torch", "transformers", "celery", "kombu", "numpy", "flower"}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch):
    """Let other commands join `ccs`, by name and target."""

    def join(**targets: str) -> None:
        entries = {
            name: EntryPoint(name, target, group.ENTRY_POINT_GROUP) for name, target in targets.items()
        }
        monkeypatch.setattr(group, "_joined", lambda: entries)

    return join


def invoke(*arguments: str):
    return CliRunner().invoke(ccs, list(arguments))


@click.command("raise")
@click.option("--json", "as_json", is_flag=True)
@click.argument("what")
def raising(as_json: bool, what: str) -> int:
    """Raise something."""
    raise {"known": NotFoundError("not there"), "interrupt": KeyboardInterrupt(), "bug": ValueError("a bug")}[
        what
    ]


@click.command("three")
def three() -> int:
    """End with 3."""
    return 3


def test_the_help_lists_every_command_in_its_section():
    run = invoke("--help")
    assert run.exit_code == 0
    assert all(f"\n  {name} " in run.output for name in COMMANDS)
    fleet, _, whole = run.output.partition("Jobs and fleet:")[2].partition("Workers and the whole system:")
    assert "\n  submit " in fleet
    assert "\n  up " in whole


@pytest.mark.parametrize("path", [(), *((name,) for name in COMMANDS), *SUBCOMMANDS])
def test_every_help_has_an_example(path):
    run = invoke(*path, "--help")
    assert run.exit_code == 0, run.output
    assert " ".join(("ccs", *path)) in run.output.partition("Usage:")[2].partition("\n")[2]


@pytest.mark.parametrize("path", [*((name,) for name in COMMANDS if name not in GROUPS), *SUBCOMMANDS])
def test_every_command_takes_json(path):
    assert "--json" in invoke(*path, "--help").output


def test_the_version_is_the_packages():
    assert invoke("--version").output.strip() == f"ccs, version {version('ccs-workers')}"


def test_listing_loads_no_heavy_library():
    script = "import sys; from ccs_broker.cli.group import ccs; ccs.main(['--help'], standalone_mode=False)"
    program = f"import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules)); {script}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    listing, _, loaded = run.stdout.rpartition("loaded ")
    assert "models" in listing
    assert not HEAVY & set(loaded.split())


def test_a_command_whose_library_is_missing_stays_listed_and_says_what_to_install(joined):
    joined(worker="library_that_is_not_there:command", three=f"{__name__}:three")
    listing = invoke("--help")
    assert listing.exit_code == 0
    assert "(not available: needs library_that_is_not_there)" in listing.output
    for arguments in (("worker",), ("worker", "--slots", "4", "x")):
        run = invoke(*arguments)
        assert run.exit_code == 1
        assert run.stderr == (
            "error: CONFIGURATION: 'ccs worker' isn't available: it needs library_that_is_not_there; "
            "install it with: pip install 'ccs-workers[worker]'\n"
        )


def test_a_base_command_can_not_be_replaced_by_one_that_joins(monkeypatch: pytest.MonkeyPatch):
    entry = EntryPoint("submit", f"{__name__}:three", group.ENTRY_POINT_GROUP)
    monkeypatch.setattr(group, "entry_points", lambda group: (entry,))
    assert group._joined() == {}


def test_the_status_of_a_command_is_its_own(joined):
    joined(three=f"{__name__}:three")
    assert invoke("three").exit_code == 3


def test_errors_end_in_a_line_and_1(joined):
    joined(**{"raise": f"{__name__}:raising"})
    run = invoke("raise", "known")
    assert (run.exit_code, run.stdout) == (1, "")
    assert run.stderr.startswith("error: NOT_FOUND: not there\n")
    run = invoke("raise", "known", "--json")
    assert run.exit_code == 1
    assert json.loads(run.stdout)["error"]["code"] == "NOT_FOUND"


def test_an_interrupt_ends_in_130(joined):
    joined(**{"raise": f"{__name__}:raising"})
    run = invoke("raise", "interrupt")
    assert run.exit_code == 130
    assert "Traceback" not in run.output


def test_a_bug_is_not_hidden(joined):
    joined(**{"raise": f"{__name__}:raising"})
    assert isinstance(invoke("raise", "bug").exception, ValueError)


@pytest.mark.parametrize("arguments", [("nonsense",), ("stream",), ("submit", "text", "x", "--qos", "soon")])
def test_wrong_usage_ends_in_2(arguments):
    run = invoke(*arguments)
    assert run.exit_code == 2
    assert "Error:" in run.stderr
    run = invoke(*arguments, "--json")
    assert run.exit_code == 2
    assert json.loads(run.stdout)["error"]["code"] == "INVALID_INPUT"
