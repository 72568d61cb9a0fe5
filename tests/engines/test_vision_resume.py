"""Continued pictures: behind every output and within every line, the rest of the whole run comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from ccs_broker.contract import Modality, Usage
from ccs_broker.errors import EngineError
from ccs_workers.engines.protocol import Delta, Failed, Resume
from ccs_workers.engines.vision import VisionEngine
from ccs_workers.models.spec import ModelSpec
from tests.media_jobs import Outputs, page, picture, vision_job
from tests.resuming import (
    Runner,
    check_every_cut,
    check_every_inner_cut,
    cut_after_progress,
    cut_before_progress,
    resume_of,
)

pytestmark = pytest.mark.engines

GRAYS = (10, 20, 30, 40, 50)
ROWS = {
    10: [["one", "two"], ["three"]],
    20: [],
    30: [["same"], ["same"], ["same"], ["", "same"]],
    40: [["same"]],
    50: [[""]],
}
LABELS = {gray: [(f"gray {gray}", 0.5), ("other", 0.25)] for gray in GRAYS} | {50: []}
PICTURES = tuple(picture(Image.new("L", (40, 30), gray)) for gray in GRAYS)
SIGHT = vision_job("sight", *PICTURES)


class FakeEyes:
    """Reads and names each picture as its gray value says."""

    def __init__(self, texts, labels):
        self.texts, self.labels = texts, labels
        self.weights_bytes = 0
        self.seen = []

    def pixels(self, image):
        return image.getpixel((0, 0))[0]

    def classify(self, batch):
        return [self.labels[gray] for gray in batch]

    def find(self, image):
        gray = image.getpixel((0, 0))[0]
        self.seen.append(gray)
        return [
            [(gray, row, column) for column in range(len(parts))]
            for row, parts in enumerate(self.texts[gray])
        ]

    def read(self, image, box):
        gray, row, column = box
        return self.texts[gray][row][column], 0.9 + column / 100


@pytest.fixture
def engines():
    made = []
    yield made
    for engine in made:
        engine.close()


def seeing(engines, texts, labels, **options):
    outputs = Outputs()
    spec = ModelSpec(alias="eyes", modality=Modality.VISION, engine="vision", options=options)
    engine = VisionEngine(spec, outputs.emit)
    engine._reader = engine._classifier = FakeEyes(texts, labels)
    engine._classify_batch = 2
    engine._begin()
    engines.append(engine)
    return Runner(engine, outputs)


@pytest.mark.parametrize("tasks", [["read", "classify"], ["read"], ["classify"]], ids=" ".join)
def test_pictures_are_continued_behind_every_output(engines, tasks):
    def made():
        run = seeing(engines, ROWS, LABELS)
        if "read" not in tasks:
            run.engine._reader = None
        if "classify" not in tasks:
            run.engine._classifier = None
        return run

    run = made()
    whole = run(SIGHT)
    texts = {
        "read": "one two\nthree\n\nsame\nsame\nsame\nsame\n\nsame",
        "classify": "gray 10 (0.50)\n\ngray 20 (0.50)\n\ngray 30 (0.50)\n\ngray 40 (0.50)",
        "read classify": "one two\nthree\n\ngray 20 (0.50)\n\nsame\nsame\nsame\nsame\n\nsame",
    }
    assert run.outputs.text("sight") == texts[" ".join(tasks)]
    assert whole[-1].usage == Usage(images=5)
    assert len(whole[-1].data["images"]) == 5

    check_every_cut(whole, SIGHT, made())
    check_every_inner_cut(whole, SIGHT, made())


def test_pictures_that_are_done_are_not_looked_at_again(engines):
    whole = seeing(engines, ROWS, LABELS)(SIGHT)
    resume, rest = cut_after_progress(whole, 2)
    again = seeing(engines, ROWS, LABELS)
    assert again(replace(SIGHT, resume=resume)) == rest
    assert again.engine._reader.seen == [40, 50]


def test_a_picture_with_warnings_keeps_them(engines):
    exif = Image.Exif()
    exif[0x0112] = 6
    damaged = exif.tobytes().replace(b"II*\0", b"XX*\0").replace(b"MM\0*", b"XX\0*")
    job = vision_job("sight", picture(Image.new("L", (40, 30), 20), "JPEG", exif=damaged), PICTURES[3])
    run = seeing(engines, ROWS, LABELS)
    whole = run(job)
    assert whole[-1].data["images"][0]["warnings"] == ["EXIF ignored: damaged"]
    check_every_cut(whole, job, seeing(engines, ROWS, LABELS))


@pytest.mark.parametrize("rows", [[["same"]], [["same"], ["other"], ["same"], ["same"]], []])
def test_a_picture_that_reads_otherwise_now_fails_its_job(engines, rows):
    whole = seeing(engines, ROWS, LABELS)(SIGHT)
    outputs = seeing(engines, ROWS | {30: rows}, LABELS)(replace(SIGHT, resume=cut_before_progress(whole, 2)))
    assert [type(output) for output in outputs] == [Failed]
    assert outputs[0].code == "ENGINE_FAILED"


def test_text_behind_the_last_picture_fails_the_job(engines):
    run = seeing(engines, ROWS, LABELS)
    outputs = run(replace(SIGHT, key="more", resume=resume_of(run(SIGHT), more=" more")))
    assert [type(output) for output in outputs] == [Failed]
    assert outputs[0].code == "ENGINE_FAILED"


@pytest.mark.parametrize(
    "progress",
    [
        ({},),
        ({"image": 1, "images": 5},),
        ({"image": 1, "images": 5, "text_end": 1},),
        ({"image": 2, "images": 5, "text_end": 0},),
        ({"image": 1, "images": 4, "text_end": 0},),
        tuple({"image": number, "images": 5, "text_end": 0} for number in range(1, 7)),
    ],
)
def test_progress_of_another_job_is_refused_at_once(engines, progress):
    run = seeing(engines, ROWS, LABELS)
    with pytest.raises(EngineError, match="doesn't fit this engine"):
        run.engine.start(replace(SIGHT, resume=Resume(text="", progress=progress)))
    assert run.outputs.all == []


def test_a_cancelled_job_counts_what_earlier_attempts_used(engines):
    run = seeing(engines, ROWS, LABELS)
    whole = run(SIGHT)
    run.outputs.hook = lambda key, output: run.engine.cancel(key)
    end = run(replace(SIGHT, key="again", resume=cut_before_progress(whole, 2)))[-1]
    assert (end.finish_reason, end.usage) == ("cancelled", Usage(images=3))
    assert end.data["images"] == whole[-1].data["images"][:3]


def test_real_pictures_are_continued(engines, models_dir):
    spec = ModelSpec(
        alias="eyes", modality=Modality.VISION, engine="vision", path=models_dir / "vision", device="cpu"
    )
    runs = []
    for _ in range(2):
        outputs = Outputs()
        engines.append(VisionEngine(spec, outputs.emit))
        engines[-1].load()
        runs.append(Runner(engines[-1], outputs))
    size = (500, 150)
    blank = picture(Image.new("RGB", (100, 100), "white"))
    job = vision_job(
        "sight",
        picture(page(["First line", "Second line"], size=(500, 220))),
        blank,
        picture(page(["Last"], size=size)),
    )
    whole = runs[0](job)
    assert runs[0].outputs.text("sight").startswith("First line\nSecond line\n\n")
    check_every_cut(whole, job, runs[1])
    known = resume_of(whole[:1], more=whole[1].text[:5])
    assert runs[1](replace(job, key="part", resume=known)) == [Delta(text=whole[1].text[5:]), *whole[2:]]
