"""The Whisper engine: speech of any length to text; torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccs_workers.engines.whisper.engine import WhisperEngine

__all__ = ["WhisperEngine"]


def __getattr__(name: str) -> Any:
    # The pure parts stay importable without torch.
    if name != "WhisperEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ccs_workers.engines.whisper.engine import WhisperEngine

    return WhisperEngine
