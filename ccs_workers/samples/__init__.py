"""Inputs that ship with the project for its demo and its tests; ``SOURCES.md`` says where each is from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["sample_path"]


def sample_path(name: str) -> Path:
    """Return where a sample lies: ``page.png``, ``clip.wav`` or ``question.txt``.

    Raises:
        FileNotFoundError: no such sample.
    """
    path = Path(str(files(__name__) / name))
    if not path.is_file():
        raise FileNotFoundError(f"no sample {name!r}")
    return path
