"""One job's way through a batching engine, from its first part or from where an earlier attempt left it.

A job's media are made of parts (windows, pictures), and each ends with a ``Progress`` that says in ``text_end`` how
many characters the job's text then has. A continued job goes on with the first part that has none. An earlier
attempt may have died within that part: it is computed anew, and ``Course.write`` emits what is new of it only. If
it isn't what callers have read already (another model, another device), the job fails, as no end of it could be right.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ccs_broker.contract import Usage
from ccs_broker.errors import EngineError
from ccs_workers.engines.protocol import Delta, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_workers.engines.protocol import EngineJob, EngineOutput

__all__ = ["Ask", "Course", "Piece", "Steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Payloads of one kind for the model, which may run together with those of other courses."""

    kind: str
    payloads: tuple[Any, ...]


#: A course's generator: sent a list of results for an ``Ask``, None at its start and after a None.
Steps = Generator[Ask | None, Any, None]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Course:
    """One job's way through the engine; its steps keep ``usage`` and ``data`` up to date."""

    job: EngineJob
    emit: Callable[[EngineOutput], None]
    usage: Usage = field(default_factory=Usage)
    data: dict[str, JsonValue] = field(default_factory=dict)
    #: Characters of the job's text so far; those of earlier attempts count once they are computed or known again.
    text_end: int = 0
    #: Set from another thread; read between pieces, and by models that can stop within one.
    cancelled: bool = False
    #: What the job needs, and what it may use; None: anything. Set from another thread as well.
    need_bytes: int = 0
    memory_bytes: int | None = None
    steps: Steps | None = None
    ask: Ask | None = None
    results: list[Any] = field(default_factory=list)
    ended: bool = False

    @property
    def may_run(self) -> bool:
        """Whether it can take a step: it has the memory for it, or only has to end."""
        return self.cancelled or self.memory_bytes is None or self.need_bytes <= self.memory_bytes

    def let_go(self) -> None:
        """Drop what only a running job needs."""
        if self.steps is not None:
            self.steps.close()
        self.steps = self.ask = None
        self.results = []
        # Others of its round may run on for long.
        self.job = replace(self.job, images=(), audio=())
        # It knows the course: without it nothing is left that only a collection would free.
        self.emit = _to_nobody

    @property
    def earlier_text(self) -> str:
        return self.job.resume.text if self.job.resume else ""

    @property
    def earlier_progress(self) -> Sequence[Mapping[str, JsonValue]]:
        return self.job.resume.progress if self.job.resume else ()

    def restore_text_end(self) -> None:
        """Set ``text_end`` to where the parts that are done end.

        Raises:
            KeyError, ValueError: the last of them doesn't tell, or what it tells can't be.
        """
        text_end = self.earlier_progress[-1]["text_end"]
        if not isinstance(text_end, int) or not 0 <= text_end <= len(self.earlier_text):
            raise ValueError
        self.text_end = text_end

    def write(self, text: str) -> None:
        """Add to the job's text; emit what of it earlier attempts haven't.

        Raises:
            EngineError: they emitted something else in its place.
        """
        known = self.earlier_text[self.text_end : self.text_end + len(text)]
        if not text.startswith(known):
            raise _differs(self.text_end)
        self.text_end += len(text)
        if new := text[len(known) :]:
            self.emit(Delta(text=new))

    def end_part(self, data: Mapping[str, JsonValue]) -> None:
        """Emit that a part of the job is done.

        Raises:
            EngineError: earlier attempts emitted more text of this part.
        """
        self.check_caught_up()
        self.emit(Progress(data={**data, "text_end": self.text_end}))

    def check_caught_up(self) -> None:
        """Raise ``EngineError`` where earlier attempts emitted text beyond what there is now."""
        if self.text_end < len(self.earlier_text):
            raise _differs(self.text_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One payload of a course's ask, as it stands in a batch."""

    course: Course
    index: int
    payload: Any


def _to_nobody(output: EngineOutput) -> None:
    del output


def _differs(position: int) -> EngineError:
    return EngineError(
        f"the job can't be continued: from character {position} on its text comes out other than it was emitted before "
        "(another model, build or device)"
    )
