"""The engine process: one model, one pipe. Run as ``python -m ccs_workers.engines.host FD``; the spec comes first.

The main thread reads the pipe; a writer thread sends whatever outputs have gathered since its last frame, so that
a lone output leaves at once and a busy step leaves in one frame. When the worker is gone the pipe closes and the
process ends itself. A third thread tells now and again that the process lives and what memory it holds.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import CcsError, ConfigurationError, DeviceLostError
from ccs_workers.engines import frames
from ccs_workers.engines.faults import EXIT_BROKEN, as_engine_error, release
from ccs_workers.engines.footprint import footprint_of, give_back
from ccs_workers.engines.protocol import Done, EngineOutput, Failed
from ccs_workers.engines.registry import engine_maker
from ccs_workers.models.spec import ModelSpec

if TYPE_CHECKING:
    from ccs_workers.engines.footprint import Footprint
    from ccs_workers.engines.protocol import Engine

logger = logging.getLogger(__name__)

#: Least seconds between two beats; jobs that end in between are told of together.
_LEAST_BEAT_S: Final = 0.5
#: Least seconds between two times that freed memory is returned to the system.
_LEAST_GIVE_BACK_S: Final = 2.0


class Writer:
    """Gathers outputs and sends them from a thread of its own; one job ends at most once."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._outputs: deque[tuple[str, EngineOutput]] = deque()
        self._there = threading.Event()
        self._open: set[str] = set()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        #: Set when a job has ended: its memory is to be told.
        self._ended = threading.Event()
        self._footprint: Footprint | None = None
        for name, run in (("ccs-pipe-writer", self._run), ("ccs-pipe-beat", self._beat)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def measure(self, device: str) -> None:
        """Tell memory from now on: the model is loaded on this device."""
        give_back()
        # What loading made lives as long as the process; collections need not look at it again.
        gc.freeze()
        self._footprint = footprint_of(device)

    def opened(self, key: str) -> None:
        """A job has been started: outputs for it are awaited."""
        with self._lock:
            self._open.add(key)

    def emit(self, key: str, output: EngineOutput) -> None:
        """Queue an output; dropped if the job has ended already.

        A job that found its device gone has not failed by that: the process ends instead, and the worker lets its
        jobs go on in another one.
        """
        if isinstance(output, Failed) and output.code == DeviceLostError.code:
            self._leave()
        with self._lock:
            if key not in self._open:
                return
            if isinstance(output, Done | Failed):
                self._open.discard(key)
                self._ended.set()
        self._outputs.append((key, output))
        self._there.set()

    def _run(self) -> None:
        while True:
            self._there.wait()
            self._there.clear()
            try:
                self._send()
            except OSError:
                os._exit(0)

    def _beat(self) -> None:
        """Show now and again that this process isn't frozen, whatever its model does, and what memory it holds."""
        gave_back_at, owed = 0.0, False
        while True:
            owed |= self._ended.wait(frames.BEAT_EVERY_S)
            self._ended.clear()
            # Not beside running jobs: it takes the allocator's locks for a while.
            if owed and not self._open and time.monotonic() - gave_back_at >= _LEAST_GIVE_BACK_S:
                give_back()
                gave_back_at, owed = time.monotonic(), False
            try:
                frame = frames.beat_frame(self._footprint.use()) if self._footprint else {"do": "beat"}
                with self._sending:
                    frames.send(self._pipe, frame)
            except OSError:
                os._exit(0)
            time.sleep(_LEAST_BEAT_S)

    def _send(self) -> None:
        with self._sending:
            gathered = []
            while self._outputs:
                gathered.append(self._outputs.popleft())
            if gathered:
                frames.send(self._pipe, frames.out_frame(gathered))

    def _leave(self) -> None:
        logger.critical("the device is lost; ending the engine's process")
        with contextlib.suppress(OSError):
            self._send()
        os._exit(EXIT_BROKEN)


def describe(error: BaseException) -> str:
    """Where an unexpected error arose, without its text: that could hold a piece of a prompt."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{lines}"


def _start(engine: Engine, writer: Writer, frame: frames.Frame, blobs: list[bytes]) -> None:
    key = frame["key"]
    writer.opened(key)
    try:
        engine.start(frames.job_of(frame, blobs))
    except CcsError as error:
        writer.emit(key, Failed(code=error.code, message=error.message))
    except BaseException as error:  # noqa: BLE001 - loop edge: whatever a job raises ends that job alone
        logger.error("starting a job failed: %s", describe(error))
        told = as_engine_error(error)
        release(error)
        writer.emit(key, Failed(code=told.code, message=told.message))


def serve(pipe: Connection) -> int:
    """Load the model named in the first frame, then work until the pipe closes. Returns the exit status."""
    first, _ = frames.receive(pipe)
    spec = ModelSpec.from_json(first["spec"])
    writer = Writer(pipe)
    try:
        engine = engine_maker(spec.engine)(spec, writer.emit)
        info = engine.load()
    except CcsError as error:
        frames.send(pipe, {"do": "fault", "code": error.code, "message": error.message})
        return 1
    except Exception as error:  # noqa: BLE001 - loop edge: loading runs foreign code; its fault goes to the worker as text
        logger.error("loading %s failed: %s", spec.alias, describe(error))
        message = f"loading the model {spec.alias!r} failed with {type(error).__name__}: {error}"
        frames.send(pipe, {"do": "fault", "code": ConfigurationError.code, "message": message})
        return 1
    writer.measure(info.device)
    frames.send(pipe, frames.info_frame(info))
    try:
        while _obey(pipe, engine, writer):
            pass
    except (EOFError, OSError):
        return 0
    finally:
        engine.close()
    return 0


def _obey(pipe: Connection, engine: Engine, writer: Writer) -> bool:
    """Do what the next frame says; nothing of it is held on to. False: it says to close."""
    frame, blobs = frames.receive(pipe)
    match frame["do"]:
        case "start":
            _start(engine, writer, frame, blobs)
        case "grant":
            engine.grant(frame["key"], frame["memory"])
        case "cancel":
            engine.cancel(frame["key"])
        case "close":
            return False
        case other:
            logger.error("unknown verb %r", other)
    return True


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(
        level=logging.WARNING,
        stream=sys.stderr,
        format="[%(asctime)s: %(levelname)s/engine] %(name)s: %(message)s",
    )
    status = serve(Connection(int(sys.argv[1])))
    # A model's threads may not end by themselves; everything that matters has been sent.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
