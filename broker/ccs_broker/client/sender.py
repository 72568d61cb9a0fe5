"""Where a client keeps what sends its pipelines: made with the first of them, as most clients have none."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccs_broker.client.canvas import Canvas
    from ccs_broker.pipelines.records import Plan
    from ccs_broker.settings import BrokerSettings

__all__ = ["CanvasSender"]


class CanvasSender:
    """Sends plans; thread-safe."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._canvas: Canvas | None = None

    def send(self, plan: Plan) -> None:
        """See :meth:`ccs_broker.client.canvas.Canvas.send`."""
        with self._lock:
            if self._canvas is None:
                # Celery takes longer to import than all of the client.
                self._canvas = import_module("ccs_broker.client.canvas").Canvas(self._settings)
            canvas = self._canvas
        canvas.send(plan)

    def close(self) -> None:
        """Close the connections, if there are any."""
        with self._lock:
            canvas, self._canvas = self._canvas, None
        if canvas is not None:
            canvas.close()
