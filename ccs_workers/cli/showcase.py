"""Submits real inputs of every modality at once and gathers their streams, for the demo."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.cli.show import progress_of
from ccs_broker.contract import Event, EventKind, Outcome
from ccs_broker.errors import WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccs_broker.client import Client, JobHandle

__all__ = ["SHOWN", "Strand", "follow", "submit_all"]

#: The modalities that have a sample to show.
SHOWN: Final = ("text", "vision", "audio")
#: Small models on a busy small machine end well within this.
_LIMIT_S: Final = 300.0
_LOOK_S: Final = 0.25
_NEW_TOKENS: Final = 64


@dataclass(slots=True, kw_only=True)
class Strand:
    """One job of the demo and what has come of it so far."""

    modality: str
    job: JobHandle
    state: str = "queued"
    text: str = ""
    #: How far a job is that works in steps: "window 2 of 4".
    note: str = ""
    events: int = 0
    outcome: Outcome | None = None

    @property
    def succeeded(self) -> bool:
        """True if the job has ended well."""
        return self.outcome is not None and self.outcome.ok

    def take(self, event: Event) -> None:
        """Add one event."""
        self.events += 1
        self.text += event.text
        if event.kind in (EventKind.STARTED, EventKind.RESUMED):
            self.state = "running"
        elif event.kind is EventKind.PROGRESS:
            self.note = progress_of(event)
        elif event.terminal or event.kind is EventKind.PREEMPTED:
            self.state = event.kind.value


def submit_all(client: Client, modalities: Sequence[str], jobs_each: int) -> list[Strand]:
    """Submit the sample of each modality ``jobs_each`` times, all before the first is waited for."""
    from ccs_workers.samples import sample_path

    inputs: dict[str, dict[str, Any]] = {
        "text": {"prompt": sample_path("question.txt").read_text(encoding="utf-8").strip()},
        "vision": {"images": [sample_path("page.png")]},
        "audio": {"audio": sample_path("clip.wav")},
    }
    return [
        Strand(
            modality=modality,
            job=client.submit(
                modality, **inputs[modality], qos="interactive", tenant="demo", max_new_tokens=_NEW_TOKENS
            ),
        )
        for _ in range(jobs_each)
        for modality in modalities
    ]


def follow(strands: Sequence[Strand], look: Callable[[], None]) -> Iterator[tuple[Strand, Event | None]]:
    """Follow all streams at once until every job has its outcome.

    Each event is added to its strand and then given; between events come strands with None, for those who
    redraw. ``look`` is called several times a second and may raise.

    Raises:
        CcsError: a stream could not be followed, or the jobs took too long.
    """
    arrivals: queue.SimpleQueue[tuple[Strand, Event | Outcome | Exception]] = queue.SimpleQueue()
    for strand in strands:
        threading.Thread(
            target=_read, args=(strand, arrivals), name=f"demo-{strand.modality}", daemon=True
        ).start()
    deadline = time.monotonic() + _LIMIT_S
    while any(strand.outcome is None for strand in strands):
        look()
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"the demo's jobs took longer than {_LIMIT_S:g} s")
        try:
            strand, news = arrivals.get(timeout=_LOOK_S)
        except queue.Empty:
            yield strands[0], None
            continue
        if isinstance(news, Exception):
            raise news
        if isinstance(news, Outcome):
            strand.outcome = news
            strand.state = news.state.value
            yield strand, None
        else:
            strand.take(news)
            yield strand, news


def _read(strand: Strand, arrivals: queue.SimpleQueue[tuple[Strand, Event | Outcome | Exception]]) -> None:
    try:
        for event in strand.job.stream(timeout=_LIMIT_S):
            arrivals.put((strand, event))
        arrivals.put((strand, strand.job.result(timeout=_LIMIT_S)))
    except Exception as error:  # noqa: BLE001 - the edge of a thread: the main thread raises it again
        arrivals.put((strand, error))
