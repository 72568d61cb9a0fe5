"""A running job as the memory ledger knows it: what it is told once its exact need is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_broker.errors import OutOfMemoryError
from ccs_workers.engines.protocol import Failed

if TYPE_CHECKING:
    from ccs_workers.executor.handle import EngineHandle
    from ccs_workers.publish.run import JobRun


class Borrowing:
    """One attempt on one engine; see ``ccs_workers.admission.records.Borrower``."""

    def __init__(self, run: JobRun, engine: EngineHandle, key: str) -> None:
        self._run = run
        self._engine = engine
        self._key = key

    def granted(self, memory_bytes: int) -> None:
        """Let the engine begin with the job, if it held it."""
        self._engine.grant(self._key, memory_bytes)

    def refused(self, need_bytes: int, most_bytes: int) -> None:
        """Fail the job: it can't run here, ever."""
        message = (
            f"the job needs {need_bytes} bytes of memory, of which jobs can have {most_bytes} at most here"
        )
        self._run.out_of_memory = True
        self._engine.cancel(self._key)
        self._run.finish(Failed(code=OutOfMemoryError.code, message=message))

    def hand_back(self) -> None:
        """Let another attempt have it later."""
        self._run.notice("memory")
