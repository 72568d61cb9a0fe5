"""What a job had goes with its end, whatever is still to come in the round."""

from __future__ import annotations

import threading
import weakref

import pytest

from ccs_workers.engines.course import Ask
from ccs_workers.engines.protocol import Done
from tests.media_jobs import Outputs, vision_job
from tests.unit.engines.test_batching import Double


class Decoded:
    """Stands for a decoded picture."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Holding(Double):
    """Decodes a job's picture and runs the model on it alone; tells what of the decoded pictures is still there."""

    def __init__(self, emit):
        super().__init__(emit, size=1)
        self.decoded: dict[bytes, weakref.ref[Decoded]] = {}
        self.second = threading.Event()

    def _steps(self, course):
        picture = Decoded(course.job.images[0])
        self.decoded[picture.data] = weakref.ref(picture)
        yield Ask(kind="see", payloads=(picture,))

    def _run(self, kind, pieces):
        (piece,) = pieces
        if piece.payload.data == b"last":
            self.second.set()
            assert self.open.wait(30)
        self.batches.append(piece.payload.data)
        return ["seen"]


@pytest.fixture
def engine():
    outputs = Outputs()
    made = Holding(outputs.emit)
    made.outputs = outputs
    yield made
    made.open.set()
    made.close()


def test_a_picture_goes_with_its_job_and_not_with_the_round(engine):
    engine.open.clear()
    # Both are there before the thread begins, and so in one round.
    engine.start(vision_job("a", b"first"))
    engine.start(vision_job("b", b"last"))
    courses = [weakref.ref(course) for course in engine._courses.values()]
    engine.load()
    assert engine.second.wait(10)
    assert isinstance(engine.outputs.done("a", 5), Done)
    assert engine.decoded[b"first"]() is None
    assert engine.decoded[b"last"]() is not None
    # Nor are its encoded bytes there.
    ended = courses[0]()
    assert ended is None or ended.job.images == ()
    engine.open.set()
    assert isinstance(engine.outputs.done("b", 5), Done)
    assert engine.batches == [b"first", b"last"]
