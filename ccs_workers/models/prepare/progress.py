"""How preparing tells what it is doing: one callback for the caller, one for the converters."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often, from one thread, with a stage such as ``smollm2: download``.

    ``done`` and ``total`` count bytes where the stage ends in ``download``, steps elsewhere; a stage is
    over when both are equal. ``total`` 0 means that the length is unknown (waiting for another process).
    """

    def __call__(self, stage: str, done: int, total: int) -> None: ...


class Step(Protocol):
    """Called by a converter after each of its steps."""

    def __call__(self, done: int, total: int) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
