"""One running job: from its tokens to deltas and to the reason why it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ccs_broker.contract import Usage
from ccs_broker.errors import EngineError
from ccs_workers.engines.protocol import Delta

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ccs_workers.engines.protocol import EngineJob, FinishReason, Resume
    from ccs_workers.engines.text.detokenizer import Detokenizer
    from ccs_workers.engines.text.stop_strings import StopFilter


class Trial(Enum):
    """How surely a job is to blame for a crash of the loop."""

    NONE = "none"
    #: One of many; the only one on trial if it crashes again.
    WATCHED = "watched"
    #: Crashed as the only one on trial; what happens now is its own doing.
    ALONE = "alone"


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A job between its start and its end. Owned by the engine and changed under its lock alone."""

    job: EngineJob
    prompt_ids: list[int]
    detokenizer: Detokenizer
    stop: StopFilter
    #: All tokens decoded so far, over every life of the loop.
    generated: list[int] = field(default_factory=list)
    #: How many of them the current loop was given behind the prompt.
    carried: int = 0
    #: Set after a crash until it gives a token: nobody joins it, and (ALONE) it joins nobody.
    trial: Trial = Trial.NONE
    #: Crashes that the job was part of.
    crashes: int = 0
    #: Room for keys and values that it holds while it is active, in the loop's units.
    room: int = 0

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and answer together at most."""
        return len(self.prompt_ids) + self.job.sampling.max_new_tokens

    @property
    def usage(self) -> Usage:
        """What was consumed so far; the token that ended the answer counts."""
        return Usage(prompt_tokens=len(self.prompt_ids), completion_tokens=len(self.generated))

    def restore(self, resume: Resume, end_ids: Container[int]) -> tuple[str, FinishReason | None]:
        """Go on behind what earlier attempts said: return what they owed, and the end if they had reached it.

        Raises:
            EngineError: these tokens don't give that text here; going on would contradict what was sent.
        """
        ids = list(resume.token_ids)
        ended = bool(ids) and ids[-1] in end_ids
        complete = ended or len(ids) >= self.job.sampling.max_new_tokens
        self.generated = ids
        text = self.stop.push(self.detokenizer.push(ids[:-1] if ended else ids))
        reason: FinishReason | None = "stop" if self.stop.found else None
        if complete and reason is None:
            text += self.stop.push(self.detokenizer.finish()) + self.stop.finish()
            reason = "end" if ended else "length"
        owed = text.removeprefix(resume.text)
        if not text.startswith(resume.text) or (owed and reason is None):
            raise EngineError(
                "this model turns the logged tokens into another text; the job can't be continued"
            )
        return owed, reason

    def resumed_ids(self) -> list[int]:
        """Return prompt and tokens so far, to go on from in another loop."""
        self.carried = len(self.generated)
        return self.prompt_ids + self.generated

    def take(
        self, tokens: Sequence[int], end_ids: Container[int], *, complete: bool
    ) -> tuple[Delta | None, FinishReason | None]:
        """Take all tokens the loop has decoded; return what is new, and why the job ends if it does.

        ``complete``: the loop is done with it, by an end token or at its limit.
        """
        new = list(tokens[len(self.generated) - self.carried :])
        self.generated += new
        ended = complete and bool(new) and new[-1] in end_ids
        text = self.stop.push(self.detokenizer.push(new[:-1] if ended else new))
        reason: FinishReason | None = None
        if complete and not self.stop.found:
            text += self.stop.push(self.detokenizer.finish())
            text += self.stop.finish()
            reason = "end" if ended else "length"
        if self.stop.found:
            reason = "stop"
        return (Delta(text=text, token_ids=tuple(new)) if new else None), reason
