"""What both simulated engines say of themselves and of jobs' memory, and which jobs are too long for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ccs_broker.errors import ContextTooLongError
from ccs_workers.engines.protocol import SIMULATED_DEVICE, EngineInfo

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import EngineJob
    from ccs_workers.engines.simulated.options import SimulatedOptions
    from ccs_workers.models.spec import ModelSpec

__all__ = ["check_context", "engine_info", "need_bytes"]

#: For the estimate: a token is a word, a character and the space before it at the least.
_TOKENS_PER_CHAR: Final = 0.5


def engine_info(spec: ModelSpec, options: SimulatedOptions) -> EngineInfo:
    """What a loaded simulated engine tells of itself."""
    each, token = options.bytes_per_job, options.bytes_per_token
    return EngineInfo(
        alias=spec.alias,
        modality=spec.modality,
        device=SIMULATED_DEVICE,
        dtype="none",
        weights_bytes=options.weights_bytes,
        load_s=options.load_seconds,
        context_tokens=options.context_tokens,
        fixed_bytes=options.weights_bytes,
        need=(each + token * _TOKENS_PER_CHAR, token * _TOKENS_PER_CHAR, float(token), 0.0, 0.0),
    )


def need_bytes(job: EngineJob, options: SimulatedOptions) -> int:
    """What a job is said to take: its words and new tokens are known here."""
    tokens = len(job.prompt.split()) + min(job.sampling.max_new_tokens, options.tokens)
    return options.bytes_per_job + options.bytes_per_token * tokens


def check_context(job: EngineJob, options: SimulatedOptions) -> None:
    """Refuse a job that is too long.

    Raises:
        ContextTooLongError: prompt and answer together exceed the context.
    """
    prompt_tokens = len(job.prompt.split())
    if prompt_tokens + job.sampling.max_new_tokens > options.context_tokens:
        raise ContextTooLongError(
            f"{prompt_tokens} prompt tokens and {job.sampling.max_new_tokens} new ones exceed the "
            f"context of {options.context_tokens} tokens"
        )
