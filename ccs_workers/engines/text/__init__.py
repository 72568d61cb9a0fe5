"""The text engine: decoder models through transformers' continuous batching; torch comes on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ccs_workers.engines.text.engine import TextEngine

__all__ = ["TextEngine"]


def __getattr__(name: str) -> Any:
    # The pure parts (detokenizer, stop strings) stay importable without torch.
    if name != "TextEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ccs_workers.engines.text.engine import TextEngine

    return TextEngine
