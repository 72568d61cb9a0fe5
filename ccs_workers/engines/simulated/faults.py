"""Faults on demand, as models and devices have them: deaths, hangs, and errors that stay."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

from ccs_workers.engines.simulated.options import DEVICE, MEMORY

if TYPE_CHECKING:
    import threading

    from ccs_workers.engines.simulated.options import FaultOptions

__all__ = ["Faults"]

_DEVICE_ERROR: Final = "CUDA error: device-side assert triggered"


class Faults:
    """Strikes the jobs whose prompts ask for it; see ``FaultOptions``."""

    def __init__(self, options: FaultOptions, closed: threading.Event) -> None:
        self._options = options
        self._closed = closed
        self._device_lost = False

    def on_start(self, prompt: str, tokens: int) -> None:
        """Strike when a job arrives that has ``tokens`` from earlier attempts; may not return, or raise."""
        self._raise_if_lost()
        if self._crashes(prompt, tokens):
            _crash()

    def on_step(self, prompt: str, tokens: int) -> None:
        """Strike at a job's step after its first ``tokens``; may not return, block, or raise what a model would."""
        self._raise_if_lost()
        if self._crashes(prompt, tokens):
            _crash()
        if _is_in(self._options.hang_on, prompt):
            self._closed.wait()
        elif _is_in(self._options.raise_on, prompt):
            self._raise()

    def _crashes(self, prompt: str, tokens: int) -> bool:
        return tokens >= self._options.crash_after_tokens and _is_in(self._options.crash_on, prompt)

    def _raise_if_lost(self) -> None:
        if self._device_lost:
            raise RuntimeError(_DEVICE_ERROR)

    def _raise(self) -> None:
        if self._options.raise_kind == MEMORY:
            raise MemoryError
        self._device_lost = self._options.raise_kind == DEVICE
        self._raise_if_lost()
        raise RuntimeError("an error that nobody knows")


def _is_in(word: str | None, prompt: str) -> bool:
    return word is not None and word in prompt


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
