"""A base for engines that batch what has arrived together: one thread, one course of steps per job.

A job's course is a generator. It yields an ``Ask`` when it needs the model (or None to let the others go
first) and is sent the results in the order of the ask's payloads; what it finds it emits. In each round the
thread gathers the asks of all courses, runs those of one kind as batches, and sends every course its own
results. So results never move from one job to another, jobs of any length take turns, and a batch that raises
is halved until the piece that is to blame stands alone: it fails its own job only.

A job that needs more memory than it was granted takes no step until it is. As one thread takes all steps, what a
step uses and frees again counts once, not for every job; see ``_check``.
"""

from __future__ import annotations

import logging
import threading
import traceback
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.errors import CcsError, EngineError, EngineLostError, InternalError
from ccs_workers.engines.course import Course, Piece
from ccs_workers.engines.faults import as_engine_error, is_out_of_memory, release
from ccs_workers.engines.protocol import Done, Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.engines.course import Steps
    from ccs_workers.engines.protocol import Emit, EngineInfo, EngineJob, EngineOutput, FinishReason, Sized
    from ccs_workers.models.spec import ModelSpec

__all__ = ["BatchEngine"]

logger = logging.getLogger(__name__)

#: Longest that ``close`` waits for the step in progress.
_CLOSE_S: Final = 5.0


class BatchEngine(ABC):
    """The thread, the rounds and the isolation; subclasses say what steps a job has and how a batch runs."""

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        self._spec = spec
        self._emit = emit
        self._courses: dict[str, Course] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"ccs-{spec.engine}", daemon=True)

    @abstractmethod
    def load(self) -> EngineInfo:
        """Load the model, then call ``_begin``."""

    @abstractmethod
    def _check(self, job: EngineJob) -> Sized:
        """Return what a job needs, by the headers of its media; raise a ``CcsError`` for what is wrong there.

        That is what it holds between its steps, and by how much one of its steps exceeds those of the warm-up.
        """

    @abstractmethod
    def _steps(self, course: Course) -> Steps:
        """Return the generator of a job; a ``CcsError`` raised in it fails the job with its code."""

    @abstractmethod
    def _restore(self, course: Course) -> None:
        """Set usage and data to what the parts in ``course.earlier_progress`` (one or more) came to.

        ``KeyError``, ``TypeError`` and ``ValueError`` mean that the progress isn't this engine's.
        """

    @abstractmethod
    def _run(self, kind: str, pieces: Sequence[Piece]) -> Sequence[Any]:
        """Run a batch; return one result per piece, in order."""

    @abstractmethod
    def _largest_batch(self, kind: str) -> int:
        """Most pieces of a kind that run together."""

    def start(self, job: EngineJob) -> None:
        """Take a job; raises what its media's headers give away."""
        sized = self._check(job)
        course = Course(
            job=job,
            emit=lambda output: self._send(course, output),
            need_bytes=sized.need_bytes,
            memory_bytes=job.memory_bytes,
        )
        if course.earlier_progress:
            self._resume(course)
        course.steps = self._steps(course)
        with self._wake:
            if self._closed:
                raise EngineLostError("the engine has been closed")
            if job.key in self._courses:
                raise InternalError("a job with this key is running already")
            self._courses[job.key] = course
            # Before the thread can know of it: nothing of a job comes before its size.
            if sized.need_bytes or job.memory_bytes:
                self._emit(job.key, sized)
            self._wake.notify()

    def grant(self, key: str, memory_bytes: int) -> None:
        """Note what a job may use; one that was held goes on when that is enough."""
        with self._wake:
            if course := self._courses.get(key):
                course.memory_bytes = memory_bytes
                self._wake.notify()

    def cancel(self, key: str) -> None:
        """End a job before its next piece."""
        with self._wake:
            if course := self._courses.get(key):
                course.cancelled = True
                self._wake.notify()

    def close(self) -> None:
        """Stop after the step in progress; nothing is emitted from now on."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    def _begin(self) -> None:
        self._thread.start()

    def _resume(self, course: Course) -> None:
        try:
            course.restore_text_end()
            self._restore(course)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(
                "the job can't be continued: its earlier progress doesn't fit this engine"
            ) from error

    def _live_count(self) -> int:
        """Jobs that run now; who asks for several payloads at once shares the largest batch with them."""
        with self._wake:
            return max(1, sum(course.may_run for course in self._courses.values()))

    def _work(self) -> None:
        while self._wait():
            # Held by nobody while the thread waits: what a job had goes with it.
            self._round(self._next_courses())

    def _wait(self) -> bool:
        """Wait until a job can take a step; return whether the engine is still open."""
        with self._wake:
            self._wake.wait_for(lambda: self._closed or any(one.may_run for one in self._courses.values()))
            return not self._closed

    def _next_courses(self) -> list[Course]:
        with self._wake:
            return [course for course in self._courses.values() if course.may_run]

    def _round(self, courses: list[Course]) -> None:
        for course in courses:
            if course.ask is None or not course.ask.payloads:
                self._advance(course, None if course.ask is None else [])
        due: dict[str, list[Piece]] = {}
        for course in courses:
            if course.ask is not None and course.ask.payloads and not course.ended:
                course.results = [None] * len(course.ask.payloads)
                due.setdefault(course.ask.kind, []).extend(
                    Piece(course=course, index=i, payload=p) for i, p in enumerate(course.ask.payloads)
                )
        for kind, pieces in due.items():
            size = self._largest_batch(kind)
            while pieces and not self._closed:
                batch = pieces[:size]
                # Nobody holds what a job that ends in this round had, however many come behind it.
                del pieces[:size]
                self._run_batch(kind, batch)

    def _run_batch(self, kind: str, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.course.cancelled:
                self._end(piece.course, "cancelled")
        pieces[:] = [piece for piece in pieces if not piece.course.ended and not self._closed]
        results = self._isolated(kind, pieces)
        # Their payloads go before the jobs take their next steps.
        places = [(piece.course, piece.index) for piece in pieces]
        pieces.clear()
        for (course, index), result in zip(places, results, strict=True):
            if course.ended:
                continue
            if isinstance(result, CcsError):
                self._fail(course, result)
                continue
            course.results[index] = result
            if index == len(course.results) - 1:
                self._advance(course, course.results)

    def _isolated(self, kind: str, pieces: list[Piece]) -> list[Any]:
        """Run pieces together, and in halves where that raises; one that raises alone gives its error."""
        if not pieces:
            return []
        try:
            results = list(self._run(kind, pieces))
            if len(results) != len(pieces):
                raise InternalError(f"{len(pieces)} pieces gave {len(results)} results")
            return results
        except BaseException as error:  # noqa: BLE001 - loop edge: whatever a job raises ends that job alone
            logger.error("a batch of %d (%s) failed: %s", len(pieces), kind, _describe(error))
            told = as_engine_error(error, need_bytes=pieces[0].course.need_bytes)
            release(error)
            if len(pieces) == 1:
                return [told]
        middle = len(pieces) // 2
        return self._isolated(kind, pieces[:middle]) + self._isolated(kind, pieces[middle:])

    def _advance(self, course: Course, results: list[Any] | None) -> None:
        """Let a course take its next step."""
        if course.ended or course.steps is None:
            return
        if course.cancelled:
            self._end(course, "cancelled")
            return
        course.ask = None
        try:
            course.ask = course.steps.send(results)
        except StopIteration:
            self._end_whole(course)
        except CcsError as error:
            self._fail(course, error)
        except BaseException as error:  # noqa: BLE001 - loop edge: whatever a job raises ends that job alone
            logger.error("a job's step failed: %s", _describe(error))
            told: CcsError = InternalError(f"preparing the job raised {type(error).__name__}")
            if is_out_of_memory(error):
                told = as_engine_error(error, need_bytes=course.need_bytes)
            release(error)
            self._fail(course, told)

    def _end_whole(self, course: Course) -> None:
        try:
            course.check_caught_up()
        except EngineError as error:
            self._fail(course, error)
        else:
            self._end(course, "end")

    def _end(self, course: Course, reason: FinishReason) -> None:
        self._finish(course, Done(finish_reason=reason, usage=course.usage, data=course.data))

    def _fail(self, course: Course, error: CcsError) -> None:
        self._finish(course, Failed(code=error.code, message=error.message))

    def _finish(self, course: Course, output: Done | Failed) -> None:
        if course.ended:
            return
        course.ended = True
        course.let_go()
        with self._wake:
            self._courses.pop(course.job.key, None)
        if not self._closed:
            self._emit(course.job.key, output)

    def _send(self, course: Course, output: EngineOutput) -> None:
        if not course.ended and not self._closed:
            self._emit(course.job.key, output)


def _describe(error: BaseException) -> str:
    """Where an error arose, without its text: that could hold a piece of a prompt."""
    return f"{type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}"
