"""Whether a continued answer turned off where two tokens were as good as each other; loads the model to see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from ccs_workers.engines.text.loader import load_model
from ccs_workers.engines.text.options import TextOptions
from ccs_workers.engines.text.sampler import Draw, gumbel_noise, penalized
from ccs_workers.engines.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.contract import Sampling
    from ccs_workers.models.spec import ModelSpec

__all__ = ["TIE", "TieJudge", "shortfall"]

#: Between the scores of two tokens; below it, rounding of a longer prefill may choose the other one.
TIE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    model: Any
    vocabulary: Vocabulary


class TieJudge:
    """Knows one text model, which it loads on the CPU when it is first asked."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = replace(spec, device="cpu")
        self._loaded: _Loaded | None = None

    def is_tie(
        self, prompt: str, sampling: Sampling, seed: int, answers: tuple[Sequence[int], Sequence[int]]
    ) -> bool:
        """Whether the first tokens that differ were both the best, within ``TIE``; ``answers`` are token ids."""
        ours, theirs = answers
        pairs = enumerate(zip(ours, theirs, strict=False))
        first = next((place for place, (one, other) in pairs if one != other), None)
        if first is None:
            return False
        loaded = self._load()
        sequence = [*loaded.vocabulary.encode(prompt), *ours[:first]]
        with torch.inference_mode():
            scores = loaded.model(torch.tensor([sequence])).logits[0, -1].double()
        draw = Draw.of(sampling, seed)
        if draw is not None and draw.repetition_penalty != 1:
            scores = penalized(scores, sequence, draw.repetition_penalty)
        return all(
            shortfall(scores, token, draw, len(sequence)) < TIE for token in (ours[first], theirs[first])
        )

    def _load(self) -> _Loaded:
        if self._loaded is None:
            loaded = load_model(self._spec)
            vocabulary = Vocabulary(loaded.tokenizer, TextOptions.of(self._spec), self._spec.alias)
            self._loaded = _Loaded(model=loaded.model, vocabulary=vocabulary)
        return self._loaded


def shortfall(scores: torch.Tensor, token: int, draw: Draw | None, position: int) -> float:
    """How much better another token is than this one, in what is compared when one is chosen; 0 for the best.

    ``scores``: one row, float64, penalties included. Infinite for one that ``top_k`` or ``top_p`` leave out by more
    than ``TIE``; where they leave out by less, rounding may have let it in.
    """
    if draw is None or draw.temperature == 0:
        return float(scores.max() - scores[token])
    scaled = (scores - scores.max()) / draw.temperature
    values = scaled + gumbel_noise(draw.seed, position, torch.arange(scaled.numel(), device=scaled.device))
    may, surely = _kept(scaled, draw)
    if not may[token]:
        return float("inf")
    # Of several that are as good as each other none may be sure to be left, and then any can be drawn.
    return max(0.0, float(values[surely].max() - values[token])) if surely.any() else 0.0


def _kept(scaled: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens ``top_k`` and ``top_p`` may leave, and which they surely leave, as scores move by up to ``TIE``.

    Of tokens that are as good as each other, either may come first in their order.
    """
    ordered = scaled.sort(descending=True).values
    fewest, most = (torch.searchsorted(-ordered, -(scaled + slack)) for slack in (TIE, -TIE))
    # Not counting itself.
    most = most - 1
    kept = scaled.numel() if draw.top_k is None else min(draw.top_k, scaled.numel())
    may, surely = fewest < kept, most < kept
    if draw.top_p is not None and draw.top_p < 1:
        likely = torch.softmax(ordered[:kept], dim=-1).cumsum(dim=-1)
        before = torch.cat([likely.new_zeros(1), likely])
        # The likeliest token is always left.
        may &= (fewest == 0) | (before[fewest.clamp(max=kept)] < draw.top_p + TIE)
        surely &= (most == 0) | (before[most.clamp(max=kept)] < draw.top_p - TIE)
    return may, surely
