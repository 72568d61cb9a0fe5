"""How text is drawn from a model: one frozen record per job, never a shared setting."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ccs_broker.contract.limits import MAX_NEW_TOKENS, MAX_STOP_CHARS, MAX_STOP_STRINGS

StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]


class Sampling(BaseModel):
    """Greedy by default; the same seed gives the same tokens whoever runs beside the job."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)

    max_new_tokens: int = Field(default=128, ge=1, le=MAX_NEW_TOKENS, strict=True)
    #: 0 is greedy.
    temperature: float = Field(default=0.0, ge=0.0, le=10.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=1, le=1_000_000, strict=True)
    #: Over 1: tokens that prompt or answer have already become less likely, below 1 likelier.
    repetition_penalty: float = Field(default=1.0, ge=0.1, le=10.0)
    #: None: the worker draws one and reports it in the outcome.
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1, strict=True)
    #: The text ends before the first of these that appears.
    stop: tuple[StopString, ...] = Field(default=(), max_length=MAX_STOP_STRINGS)
