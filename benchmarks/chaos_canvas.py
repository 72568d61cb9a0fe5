"""Chains of three and chords of eight jobs, sent through Celery on the ledger transport while the faults go on."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, chain, chord
from celery.backends.redis import RedisBackend
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.chaos_plan import simulated_text
from ccs_broker import topology
from ccs_broker.transport import RUN_TASK, celery_settings

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS: Final = 3
_HEADERS: Final = 8
_OPEN: Final = 4
_POLL_S: Final = 0.1
_SEED: Final = 11
_ENDED: Final = (b"succeeded", b"failed", b"cancelled", b"expired", b"quarantined")


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """One chain or chord: the ids of its jobs, each with its text, the last one at the end."""

    name: str
    texts: dict[str, str]

    @property
    def last(self) -> str:
        """Id of the job that ends it."""
        return list(self.texts)[-1]


class SilentBackend(RedisBackend):  # type: ignore[misc]
    """Celery's own, but nobody here waits on a result, so nothing is subscribed to."""

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """A producer sends a task."""

    def remove_pending_result(self, result: Any) -> Any:
        """A result object is dropped; with a subscription this would wait for the server."""
        return result


class CanvasRun:
    """Sends canvases in one thread, few at a time."""

    def __init__(self, url: str, count: int, released: Callable[[], float]) -> None:
        backend = f"benchmarks.chaos_canvas:SilentBackend+{url}"
        self._app = Celery("chaos", broker=url, backend=backend, set_as_current=False)
        self._app.conf.update(celery_settings())
        self._redis = Redis.from_url(url, socket_timeout=5.0)
        self._count = count
        #: Share of the run that is over.
        self._released = released
        self._open: list[Canvas] = []
        self.stop = threading.Event()
        self.sent: list[Canvas] = []
        #: Ids of canvases whose sending failed: nobody was told that they were accepted.
        self.refused: set[str] = set()

    def run(self) -> None:
        """Send all: a chain and a chord in turn."""
        for number in range(2 * self._count):
            while len(self._open) >= _OPEN or self._released() * 2 * self._count < number:
                if self.stop.wait(_POLL_S):
                    return
                self._poll()
            self._send(number)

    def settle(self, silence_s: float) -> None:
        """Wait until the last job of each has ended, or nothing has for a while."""
        since, left = time.monotonic(), len(self._open)
        while self._open and time.monotonic() < since + silence_s:
            self._poll()
            if len(self._open) < left:
                since, left = time.monotonic(), len(self._open)
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()
        self._app.close()

    def _send(self, number: int) -> None:
        while not self.stop.is_set():
            signature, canvas = (self._chain if number % 2 == 0 else self._chord)(number)
            try:
                signature.apply_async()
            except Exception:  # noqa: BLE001 - kombu, redis-py and we each raise our own when the server is away
                self.refused |= set(canvas.texts)
                self.stop.wait(_POLL_S)
                continue
            self.sent.append(canvas)
            self._open.append(canvas)
            return

    def _job(self, prompt: str, tokens: int, job_id: str) -> Any:
        spec = {"prompt": prompt, "max_new_tokens": tokens, "seed": _SEED}
        return self._app.signature(RUN_TASK, args=[spec], queue="ccs.text").set(task_id=job_id)

    def _chain(self, number: int) -> tuple[Any, Canvas]:
        ids = [str(uuid.uuid4()) for _ in range(_STEPS)]
        texts: dict[str, str] = {}
        previous, jobs = "", []
        for step, job_id in enumerate(ids):
            prompt = f"chain {number} step {step} {{previous.text}}" if step else f"chain {number}"
            jobs.append(self._job(prompt, 6, job_id))
            previous = texts[job_id] = simulated_text(prompt.replace("{previous.text}", previous), _SEED, 6)
        return chain(*jobs), Canvas(name=f"chain {number}", texts=texts)

    def _chord(self, number: int) -> tuple[Any, Canvas]:
        ids = [str(uuid.uuid4()) for _ in range(_HEADERS)]
        prompts = [f"chord {number} part {part}" for part in range(_HEADERS)]
        texts = {job: simulated_text(prompt, _SEED, 6) for job, prompt in zip(ids, prompts, strict=True)}
        joined = "\n".join(texts.values())
        last = str(uuid.uuid4())
        body = self._job(f"chord {number} {{previous.text}}", 6, last)
        texts[last] = simulated_text(f"chord {number} {joined}", _SEED, 6)
        headers = [self._job(prompt, 6, job) for job, prompt in zip(ids, prompts, strict=True)]
        return chord(headers, body), Canvas(name=f"chord {number}", texts=texts)

    def _poll(self) -> None:
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for canvas in self._open:
                    pipe.hget(topology.JOB + canvas.last, "state")
                states = pipe.execute()
        except (RedisError, OSError):
            return
        self._open = [canvas for canvas, state in zip(self._open, states, strict=True) if state not in _ENDED]
