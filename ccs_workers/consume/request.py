"""Celery's request of a job: a revoke is a cancel, and nothing but the finish script writes the result."""

from __future__ import annotations

from typing import Any

from celery.worker import state
from celery.worker.request import Request

from ccs_broker.transport import ATTEMPT_HEADER, CLAIMS


class RunRequest(Request):
    """Stock Celery would mark the result as revoked and let the job run on in its thread, until it says otherwise."""

    def revoked(self) -> bool:
        """Called before a job starts; one that was revoked starts all the same, to end as cancelled at once."""
        if self.id in state.revoked:
            self._stop()
        return False

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Called for ``revoke(terminate=True)``: the job stops at its next step."""
        self._stop()

    def _stop(self) -> None:
        CLAIMS.stop((self.id, int(self.request_dict.get(ATTEMPT_HEADER) or 0)))
