"""A small HTTP endpoint that tells an orchestrator whether this worker is able to consume."""

from __future__ import annotations

import json
import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.errors import ConfigurationError
from ccs_workers.consume.pulse import State

if TYPE_CHECKING:
    from ccs_workers.consume.report import Reporter

logger = logging.getLogger(__name__)

#: Seconds a caller has to send its request.
_REQUEST_S: Final = 5.0


class Health:
    """``/healthz``: is it alive and not stuck; ``/readyz``: does it take jobs now. Listens from its making."""

    def __init__(self, reporter: Reporter, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigurationError(
                f"the health endpoint can't listen on {host}:{port}: {reason}"
            ) from error
        self._server.reporter = reporter
        self.port: Final[int] = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="ccs-health", daemon=True)
        self._thread.start()
        logger.info("health endpoint on http://%s:%d/healthz", host, self.port)

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    reporter: Reporter


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version = "ccs"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer the two paths with JSON: ``{"state": ..., "reason": ...}``."""
        path = self.path.partition("?")[0]
        verdict, away = self.server.reporter.verdict(), self.server.reporter.server_trouble
        # A server that is away shows in the consumer too; the outage is then the reason to tell.
        reason = away or verdict.reason
        if path == "/healthz":
            well = not away and verdict.state is not State.STALLED
        elif path == "/readyz":
            well = not away and verdict.state is State.READY
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"reason": "ask for /healthz or /readyz"})
            return
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        said = {"state": verdict.state.value, **({"reason": reason} if reason else {})}
        self._answer(status, said)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, said: dict[str, str]) -> None:
        body = json.dumps(said).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: only for debugging."""
        logger.debug("health endpoint: %s", format % args)
