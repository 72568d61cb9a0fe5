"""The repository's own files, as the tests about its shape read them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "broker" / "ccs_broker", ROOT / "ccs_workers")
OTHER_CODE = (ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def imports(self) -> Iterator[str]:
        """Dotted names that the file imports, anywhere in it; relative ones are left out."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def functions(self) -> Iterator[tuple[str, int]]:
        """Each function or method as ``file::Class.method`` with its length in lines."""
        yield from self._functions(self.tree, "")

    def _functions(self, node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield f"{self.name}::{name}", (child.end_lineno or child.lineno) - child.lineno + 1
                yield from self._functions(child, f"{name}.")
            else:
                yield from self._functions(child, prefix)


def _read(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path=path, text=text, tree=ast.parse(text, str(path)))


@cache
def package_sources() -> tuple[Source, ...]:
    """The Python files of the two packages."""
    return tuple(_read(path) for folder in PACKAGES for path in sorted(folder.rglob("*.py")))


@cache
def all_sources() -> tuple[Source, ...]:
    """The Python files of the packages, the tests, the benchmarks and the examples."""
    others = (path for folder in OTHER_CODE for path in sorted(folder.rglob("*.py")))
    return package_sources() + tuple(_read(path) for path in others)


def lua_files() -> list[Path]:
    """The scripts that run in the server."""
    return sorted((PACKAGES[0] / "lua").glob("*.lua"))
