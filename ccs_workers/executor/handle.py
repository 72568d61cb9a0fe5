"""One engine process as its worker sees it: start, feed, listen, notice its death."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from typing import TYPE_CHECKING

from ccs_broker.errors import ConfigurationError, EngineError, EngineLostError, error_for_code
from ccs_workers.engines import frames
from ccs_workers.engines.host import describe
from ccs_workers.engines.protocol import Sized
from ccs_workers.settings import engine_environment

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ccs_workers.engines.protocol import EngineInfo, EngineJob, EngineOutput, MemoryUse
    from ccs_workers.models.spec import ModelSpec

logger = logging.getLogger(__name__)

#: Called from the handle's reader thread with the outputs of one frame, in order.
OnOutputs = Callable[[Sequence[tuple[str, "EngineOutput"]]], None]
#: Called from the same thread with a job's key and the bytes that it really needs.
OnSized = Callable[[str, Sized], None]
#: Called from the same thread when the process tells its memory.
OnMemory = Callable[["MemoryUse"], None]
#: Called once, when the process is gone without having been closed; the text says how it ended.
OnDeath = Callable[[str], None]

#: Longest time a model may take to load.
LOAD_TIMEOUT_S = 600.0
_CLOSE_TIMEOUT_S = 5.0


class EngineHandle:
    """A spawned engine process: a fresh interpreter, so that no CUDA context or thread pool is inherited."""

    def __init__(
        self,
        spec: ModelSpec,
        on_outputs: OnOutputs,
        on_death: OnDeath,
        on_sized: OnSized = lambda _key, _sized: None,
        on_memory: OnMemory = lambda _use: None,
        *,
        visible: str = "",
    ) -> None:
        """``visible`` is CUDA_VISIBLE_DEVICES of the process; empty: what this one has."""
        self.spec = spec
        self._visible = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
        self.info: EngineInfo | None = None
        #: What the process said of its memory last.
        self.memory: MemoryUse | None = None
        self._on_outputs = on_outputs
        self._on_sized = on_sized
        self._on_memory = on_memory
        self._on_death = on_death
        self._write = threading.Lock()
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        """Process id, once started."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """True while the process runs and is loaded."""
        return self.info is not None and self._process is not None and self._process.poll() is None

    def start(self) -> EngineInfo:
        """Start the process and wait until its model is loaded.

        Raises:
            ConfigurationError: the model can't be loaded; the message says why.
            EngineError: the process died while loading, or took too long.
        """
        ours, theirs = Pipe()
        descriptor = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ccs_workers.engines.host", str(descriptor)],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            env={**engine_environment(_threads(self.spec)), **self._visible},
            # Ctrl-C in a terminal is for the worker; the engine ends when its pipe closes.
            start_new_session=True,
        )
        theirs.close()
        self._pipe = ours
        try:
            frames.send(ours, {"do": "load", "spec": self.spec.to_json()})
            frame = self._loaded(ours)
        except (EOFError, OSError) as error:
            how = self._end_of_process()
            raise EngineLostError(f"the engine of {self.spec.alias!r} died while loading ({how})") from error
        except EngineError:
            self.kill()
            raise
        if frame["do"] == "fault":
            self._end_of_process()
            raise _fault(frame)
        self.info = frames.info_of(frame)
        threading.Thread(target=self._read, name=f"ccs-engine-{self.spec.alias}", daemon=True).start()
        return self.info

    def _loaded(self, pipe: Connection) -> frames.Frame:
        """The first frame that says more than that the process lives."""
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while pipe.poll(max(0.0, deadline - time.monotonic())):
            frame, _ = frames.receive(pipe)
            if frame["do"] != "beat":
                return frame
        raise EngineError(f"the model {self.spec.alias!r} didn't load within {LOAD_TIMEOUT_S:.0f} s")

    def submit(self, job: EngineJob) -> None:
        """Hand a job to the engine.

        Raises:
            EngineLostError: the process is gone.
        """
        frame, blobs = frames.start_frame(job)
        self._send(frame, blobs)

    def grant(self, key: str, memory_bytes: int) -> None:
        """Let a job use so much memory; a process that is gone needs none."""
        try:
            self._send(frames.grant_frame(key, memory_bytes), ())
        except EngineLostError:
            logger.debug("grant after the engine's end")

    def cancel(self, key: str) -> None:
        """Ask for a job to stop at its next step; a process that is gone has stopped it already."""
        try:
            self._send({"do": "cancel", "key": key}, ())
        except EngineLostError:
            logger.debug("cancel after the engine's end")

    def _send(self, frame: frames.Frame, blobs: Sequence[bytes]) -> None:
        if self._pipe is None:
            raise EngineLostError(f"the engine of {self.spec.alias!r} isn't running")
        try:
            with self._write:
                frames.send(self._pipe, frame, blobs)
        except (OSError, ValueError) as error:
            raise EngineLostError(f"the engine of {self.spec.alias!r} is gone") from error

    def _read(self) -> None:
        pipe = self._pipe
        assert pipe is not None
        try:
            while True:
                if not pipe.poll(frames.FROZEN_AFTER_S):
                    logger.error("the engine of %s is frozen: no sign of life; replacing it", self.spec.alias)
                    self.kill()
                frame, _ = frames.receive(pipe)
                self._received(frame)
        except (EOFError, OSError):
            logger.debug("the pipe of %s has ended", self.spec.alias)
        except Exception as error:  # noqa: BLE001 - loop edge: an engine must not go on talking to nobody
            logger.error("reading from the engine of %s failed: %s", self.spec.alias, describe(error))
            self.kill()
        how = self._end_of_process()
        self.info = None
        if not self._closing:
            logger.error("the engine of %s died (%s)", self.spec.alias, how)
        self._on_death(how)

    def _received(self, frame: frames.Frame) -> None:
        match frame["do"]:
            case "out":
                outputs = frames.outputs_of(frame)
                for key, output in outputs:
                    if isinstance(output, Sized):
                        self._on_sized(key, output)
                if told := [pair for pair in outputs if not isinstance(pair[1], Sized)]:
                    self._on_outputs(told)
            case "beat":
                if (use := frames.memory_of(frame)) is not None:
                    self.memory = use
                    self._on_memory(use)

    def _end_of_process(self) -> str:
        process = self._process
        assert process is not None
        try:
            status = process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def close(self) -> None:
        """End the process; its memory goes back to the device with it."""
        self._closing = True
        try:
            self._send({"do": "close"}, ())
        except EngineLostError:
            logger.debug("close after the engine's end")
        if self._process is not None:
            self._end_of_process()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _threads(spec: ModelSpec) -> int:
    """Threads the engine may compute with: one unless the model file says otherwise, since engines share cores."""
    threads = spec.options.get("torch_threads", 1)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ConfigurationError(
            f"model {spec.alias!r}: option 'torch_threads' must be a whole number, 1 or more"
        )
    return threads


def _has_descriptor() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def _fault(frame: frames.Frame) -> ConfigurationError | EngineError:
    error = error_for_code(frame["code"], frame["message"])
    return error if isinstance(error, ConfigurationError | EngineError) else EngineError(frame["message"])
