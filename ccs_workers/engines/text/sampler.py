"""Draws the next token of every job of a batch from that job's own random numbers.

The noise of a token depends on the job's seed, the position in its sequence and the token's id alone: no
generator is shared and no state is kept, so a job draws the same tokens alone, in any batch, and after a
resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_broker.contract import Sampling

#: Constants of splitmix64.
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = (1 << 64) - 1
#: Tokens sorted at first for ``top_p``; the whole vocabulary only where these don't reach it.
_LIKELY: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How a job's tokens are drawn."""

    seed: int
    temperature: float
    top_k: int | None
    top_p: float | None
    #: Scores of tokens that prompt or answer have already are divided by it, negative ones multiplied; 1: not.
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, sampling: Sampling, seed: int) -> Draw | None:
        """Return None where the likeliest token is always taken, as the model has it."""
        if sampling.temperature == 0 and sampling.repetition_penalty == 1:
            return None
        return cls(
            seed=seed,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
        )


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _MIX_1 & _MASK
    value = (value ^ (value >> 27)) * _MIX_2 & _MASK
    return value ^ (value >> 31)


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without dragging the sign along; torch has no unsigned 64-bit arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def gumbel_noise(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return one Gumbel variate per token id, float64, by hashing (seed, position, id) with splitmix64.

    Adding it to log-probabilities and taking the largest draws from the distribution.
    """
    key = _mix(_mix(seed + _GOLDEN) + position * _GOLDEN)
    hashed = token_ids * _signed(_GOLDEN) + _signed(key)
    hashed = (hashed ^ _shifted(hashed, 30)) * _signed(_MIX_1)
    hashed = (hashed ^ _shifted(hashed, 27)) * _signed(_MIX_2)
    hashed = hashed ^ _shifted(hashed, 31)
    # 53 bits, off by a half so that neither 0 nor 1 occurs.
    uniform = (_shifted(hashed, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def penalized(scores: torch.Tensor, seen_ids: Sequence[int], penalty: float) -> torch.Tensor:
    """Return scores, shape [vocabulary], in which tokens that were there before count less (penalty over 1) or more.

    As transformers defines it: over the whole input, prompt and answer, before anything else is done to the scores.
    """
    ids = torch.tensor(seen_ids, dtype=torch.long, device=scores.device)
    before = scores[ids]
    return scores.index_put((ids,), torch.where(before < 0, before * penalty, before / penalty))


def draw_token(scores: torch.Tensor, draw: Draw, position: int) -> torch.Tensor:
    """Return the id drawn (a scalar tensor) from one row of scores, shape [vocabulary].

    Temperature first, then the ``top_k`` likeliest, then of those the fewest that reach ``top_p``.
    """
    scores = scores.double()
    # Below the maximum first: however small the temperature, the likeliest token stays at 0 and finite.
    scaled = (scores - scores.max()) / draw.temperature
    token_ids = torch.arange(scaled.numel(), device=scaled.device)
    if draw.top_k is not None and draw.top_k < scaled.numel():
        scaled, token_ids = torch.topk(scaled, draw.top_k)
    if draw.top_p is not None and draw.top_p < 1:
        kept = _nucleus(scaled, draw.top_p)
        scaled, token_ids = scaled[kept], token_ids[kept]
    return token_ids[torch.argmax(scaled + gumbel_noise(draw.seed, position, token_ids))]


def _nucleus(scaled: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the places of the fewest scores whose probabilities together reach ``top_p``, at least one."""
    probabilities = torch.softmax(scaled, dim=-1)
    for count in (min(_LIKELY, scaled.numel()), scaled.numel()):
        likely, places = torch.topk(probabilities, count)
        before = torch.cumsum(likely, dim=-1) - likely
        if before[-1] >= top_p:
            break
    return places[before < top_p]


class BatchSampler:
    """Stands in the manager's place for logits processors; the manager takes the argmax of what it returns.

    The draws of a step are kept on the host, so it works without CUDA graphs and without compilation.
    """

    #: Rows that the manager should keep for our arguments on the device.
    tensors_required = 0
    do_processing = True

    def __init__(self) -> None:
        self._draws: list[tuple[int, Draw, int, list[int]]] = []

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept a request's arguments: only we fill them."""

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Leave the manager's rows alone: there are none."""

    def prepare_tensor_args(
        self, requests_in_batch: Sequence[Any], arg_storage: torch.Tensor
    ) -> torch.Tensor:
        """Note how each request that gets a token in the coming step draws it."""
        ready = [request.state for request in requests_in_batch if request.has_new_token]
        # Counted from the prompt's first token; the manager has already moved it past the coming step.
        self._draws = [
            (row, draw, state.position_offset, _seen(state) if draw.repetition_penalty != 1 else [])
            for row, state in enumerate(ready)
            if (draw := state.logit_processor_kwargs["draw"]) is not None
        ]
        return arg_storage

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, args: torch.Tensor) -> torch.Tensor:
        """Return scores, shape [requests, vocabulary], whose largest entries are the tokens drawn.

        Raises:
            FloatingPointError: the model gave scores that aren't finite; whatever were drawn would be noise.
        """
        if not torch.isfinite(scores.amax(dim=-1)).all():
            raise FloatingPointError("the model's scores are not finite")
        for row, draw, position, seen_ids in self._draws:
            if seen_ids:
                scores[row] = penalized(scores[row], seen_ids, draw.repetition_penalty)
            if draw.temperature == 0:
                continue
            token_id = draw_token(scores[row], draw, position)
            scores[row] = -torch.inf
            scores[row, token_id] = 0.0
        return scores


def _seen(state: Any) -> list[int]:
    """All tokens of a request so far, those of earlier lives of the loop in what it began with."""
    ids: list[int] = [*state.initial_tokens, *state.generated_tokens]
    return ids
