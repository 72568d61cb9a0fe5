"""The vision engine: reads text in pictures and names what they show; torch is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccs_workers.engines.vision.engine import VisionEngine

__all__ = ["VisionEngine"]


def __getattr__(name: str) -> Any:
    # The pure parts stay importable without torch.
    if name != "VisionEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ccs_workers.engines.vision.engine import VisionEngine

    return VisionEngine
