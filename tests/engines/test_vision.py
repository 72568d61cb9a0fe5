"""Pictures with the real models: pages are read exactly, known pictures named, broken ones fail alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from ccs_broker.contract import Modality
from ccs_broker.errors import InvalidImageError, PayloadTooLargeError
from ccs_workers.engines.protocol import Delta, Done, Failed, Progress
from ccs_workers.engines.vision import VisionEngine
from ccs_workers.models.spec import ModelSpec
from ccs_workers.samples import sample_path
from ccs_workers.samples.draw_page import LINES, draw_page
from tests.media_jobs import Outputs, page, picture, vision_job

pytestmark = pytest.mark.engines

DATA = Path(__file__).parents[1] / "data"
CAT, ESPRESSO = (DATA / "cat.jpg").read_bytes(), (DATA / "espresso.jpg").read_bytes()
NOTICE = (
    "NOTICE TO ALL RESIDENTS",
    "Water will be off on 3 March 2031,",
    "from 9:30 to 11:45 (about 2 hours).",
    "Questions? Call 555-0142, extension 7.",
)


def spec_of(models_dir, **options):
    return ModelSpec(
        alias="sight",
        modality=Modality.VISION,
        engine="vision",
        path=models_dir / "vision",
        device="cpu",
        options=options,
    )


@pytest.fixture(scope="module")
def loaded(models_dir):
    """One engine for the whole module, and what it said when it was loaded."""
    outputs = Outputs()
    engine = VisionEngine(spec_of(models_dir), lambda key, output: outputs.emit(key, output))
    info = engine.load()
    yield engine, outputs, info
    engine.close()


@pytest.fixture
def outputs(loaded):
    loaded[1].all.clear()
    loaded[1].hook = lambda key, output: None
    return loaded[1]


@pytest.fixture
def engine(loaded, outputs):
    return loaded[0]


def read(engine, outputs, *images):
    engine.start(vision_job("page", *images))
    outputs.done("page")
    return outputs.text("page")


def test_it_tells_what_it_loaded(loaded):
    info = loaded[2]
    assert (info.alias, info.modality, info.device, info.dtype) == ("sight", "vision", "cpu", "float32")
    # 18.9, 9.9 and 21.2 MB of weights.
    assert info.weights_bytes == pytest.approx(50e6, rel=0.02)


def test_the_sample_page_is_read_exactly(engine, outputs):
    assert read(engine, outputs, sample_path("page.png").read_bytes()).split("\n") == list(LINES)


def test_the_sample_page_is_what_its_script_draws(engine, outputs):
    assert read(engine, outputs, picture(draw_page())).split("\n") == list(LINES)


@pytest.mark.parametrize("font_size", [16, 28, 40])
def test_a_page_drawn_here_is_read_exactly(engine, outputs, font_size):
    data = picture(page(NOTICE, size=(60 + 22 * font_size, 100 + 8 * font_size), font_size=font_size))
    assert read(engine, outputs, data).split("\n") == list(NOTICE)


def test_each_line_comes_as_it_is_read_and_then_the_picture(engine, outputs):
    read(engine, outputs, picture(page(NOTICE)))
    *deltas, progress, done = outputs.of("page")

    assert [delta.text.strip() for delta in deltas] == list(NOTICE)
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(progress, Progress)
    assert (progress.data["image"], progress.data["images"]) == (1, 1)
    assert [text for text, _ in progress.data["lines"]] == list(NOTICE)
    assert all(0.9 < score <= 1 for _, score in progress.data["lines"])
    assert len(progress.data["labels"]) == 5
    assert isinstance(done, Done)
    assert done.finish_reason == "end"
    assert done.usage.images == 1
    found = {key: progress.data[key] for key in ("lines", "labels")}
    assert dict(done.data) == {"images": [found]}
    json.dumps([progress.data, done.data], allow_nan=False)


def test_a_row_with_a_wide_gap_is_one_line(engine, outputs):
    image = Image.new("RGB", (900, 260), "white")
    pen = ImageDraw.Draw(image)
    for top, name, price in ((50, "Sourdough bread", "54.00"), (150, "Total of May", "1,254.00")):
        pen.text((50, top), name, fill="black", font=ImageFont.load_default(34))
        pen.text((850, top), price, fill="black", font=ImageFont.load_default(34), anchor="ra")
    expected = "Sourdough bread 54.00\nTotal of May 1,254.00"
    assert read(engine, outputs, picture(image)) == expected


def test_small_print_on_a_large_page_is_read_in_order(engine, outputs):
    lines = [
        f"Paragraph {number} costs {number * 37} crowns and is due in {number} days." for number in range(12)
    ]
    image = Image.new("RGB", (1654, 2339), "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        pen.text((120, 150 + 42 * number), line, fill="black", font=ImageFont.load_default(28))
    assert read(engine, outputs, picture(image)).split("\n") == lines


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_a_page_photographed_sideways_is_read_upright(engine, outputs, orientation):
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = page(NOTICE[:2]).transpose(turns[orientation])
    text = read(engine, outputs, picture(stored, "JPEG", exif=exif.tobytes(), quality=95))
    assert text.split("\n") == list(NOTICE[:2])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_every_mode_is_read_alike(engine, outputs, mode):
    image = page(NOTICE[:2])
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    data = picture(image, "TIFF" if mode == "CMYK" else "PNG")
    assert read(engine, outputs, data).split("\n") == list(NOTICE[:2])


def test_black_text_on_nothing_is_read_on_white(engine, outputs):
    image = Image.new("RGBA", (700, 200), (0, 0, 0, 0))
    ImageDraw.Draw(image).text((50, 60), NOTICE[0], fill=(0, 0, 0, 255), font=ImageFont.load_default(36))
    assert read(engine, outputs, picture(image)) == NOTICE[0]


def test_known_pictures_are_named(engine, outputs):
    engine.start(vision_job("cat", CAT))
    engine.start(vision_job("cup", ESPRESSO))
    cat, cup = (outputs.done(key).data["images"][0] for key in ("cat", "cup"))

    assert cat["labels"][0][0] == "Egyptian cat"
    assert 0.5 < cat["labels"][0][1] < 1
    assert cup["labels"][0][0] == "espresso"
    assert [score for _, score in cat["labels"]] == sorted((s for _, s in cat["labels"]), reverse=True)
    # Nothing is written on them: their text is the label.
    assert (cat["lines"], cup["lines"]) == ([], [])
    assert outputs.text("cat") == f"Egyptian cat ({cat['labels'][0][1]:.2f})"


def test_several_pictures_are_separated_by_an_empty_line(engine, outputs):
    text = read(engine, outputs, picture(page(NOTICE[:2])), ESPRESSO, picture(page(NOTICE[2:3])))
    blocks = text.split("\n\n")

    assert blocks[0] == "\n".join(NOTICE[:2])
    assert blocks[1].startswith("espresso (")
    assert blocks[2] == NOTICE[2]
    assert [entry["image"] for entry in outputs.progress("page")] == [1, 2, 3]
    assert outputs.done("page").usage.images == 3


def test_jobs_side_by_side_keep_their_own_results(engine, outputs):
    pages = {f"job {number}": f"This is page number {number * 111}" for number in range(1, 5)}
    for key, line in pages.items():
        engine.start(vision_job(key, picture(page([line]))))
    for key, line in pages.items():
        outputs.done(key)
        assert outputs.text(key) == line


def test_classifying_in_a_batch_gives_what_each_gives_alone(engine):
    pictures = [Image.open(DATA / name).convert("RGB") for name in ("cat.jpg", "espresso.jpg")]
    pixels = [engine._classifier.pixels(image) for image in (*pictures, page(NOTICE))]
    together = engine._classifier.classify(pixels)
    alone = [engine._classifier.classify([one])[0] for one in pixels]

    for first, second in zip(together, alone, strict=True):
        assert [label for label, _ in first] == [label for label, _ in second]
        assert [score for _, score in first] == pytest.approx([score for _, score in second], abs=1e-4)


def test_a_picture_made_small_before_its_processor_sees_it_is_the_same_to_the_bit(engine):
    classifier = engine._classifier
    assert not classifier.copies_pictures
    for image in (
        Image.open(DATA / "cat.jpg").convert("RGB"),
        page(NOTICE),
        Image.new("RGB", (3, 900), "teal"),
    ):
        whole = classifier._processor(image, return_tensors="pt").pixel_values
        assert torch.equal(classifier.pixels(image), whole)


def test_a_broken_picture_fails_its_own_job_only(engine, outputs):
    noise = np.random.default_rng(4).integers(0, 255, (400, 600, 3), dtype=np.uint8)
    whole = picture(Image.fromarray(noise), "JPEG")
    engine.start(vision_job("a", picture(page(NOTICE[:1]))))
    engine.start(vision_job("broken", picture(page(NOTICE[:1])), whole[: len(whole) // 2]))
    engine.start(vision_job("c", picture(page(NOTICE[1:2]))))

    assert isinstance(end := outputs.end("broken"), Failed)
    assert end.code == "INVALID_IMAGE"
    assert end.message == "picture 2 of 2: the picture is damaged or cut off (OSError)"
    for key, line in (("a", NOTICE[0]), ("c", NOTICE[1])):
        outputs.done(key)
        assert outputs.text(key) == line


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidImageError),
        (b"<html>404", InvalidImageError),
        (b"\x89PNG\r\n\x1a\n", InvalidImageError),
        (bytes(33 << 20), PayloadTooLargeError),
    ],
    ids=["empty", "HTML", "signature only", "33 MiB"],
)
def test_what_the_header_gives_away_is_refused_at_once(engine, outputs, data, error):
    with pytest.raises(error):
        engine.start(vision_job("bad", data))
    with pytest.raises(error, match="picture 2 of 2"):
        engine.start(vision_job("bad", ESPRESSO, data))
    assert outputs.all == []


def test_damaged_exif_is_told_and_the_picture_is_read(engine, outputs):
    exif = Image.Exif()
    exif[0x0112] = 6
    damaged = exif.tobytes().replace(b"II*\0", b"XX*\0").replace(b"MM\0*", b"XX\0*")
    data = picture(page(NOTICE[:1]), "JPEG", exif=damaged, quality=95)
    assert read(engine, outputs, data) == NOTICE[0]
    assert outputs.done("page").data["images"][0]["warnings"] == ["EXIF ignored: damaged"]


def test_cancel_takes_effect_between_lines(engine, outputs):
    outputs.hook = lambda key, output: key == "long" and isinstance(output, Delta) and engine.cancel("long")
    engine.start(vision_job("long", picture(page(NOTICE)), picture(page(NOTICE))))
    engine.start(vision_job("mate", picture(page(NOTICE[:1]))))

    assert outputs.end("long").finish_reason == "cancelled"
    assert outputs.text("long") == NOTICE[0]
    outputs.done("mate")
    assert outputs.text("mate") == NOTICE[0]


def test_only_the_tasks_asked_for_are_loaded_and_run(models_dir, outputs):
    for tasks, text in ((["read"], NOTICE[0]), (["classify"], None)):
        engine = VisionEngine(spec_of(models_dir, tasks=tasks, top_k=2), outputs.emit)
        engine.load()
        outputs.all.clear()
        engine.start(vision_job("page", picture(page(NOTICE[:1]))))
        found = outputs.done("page").data["images"][0]
        engine.close()
        assert bool(found["lines"]) is (tasks == ["read"])
        assert len(found["labels"]) == (2 if tasks == ["classify"] else 0)
        assert outputs.text("page") == (text or "{} ({:.2f})".format(*found["labels"][0]))


def test_nothing_read_and_nothing_classified_is_an_empty_text(models_dir, outputs):
    engine = VisionEngine(spec_of(models_dir, tasks=["read"]), outputs.emit)
    engine.load()
    engine.start(vision_job("blank", picture(Image.new("RGB", (300, 200), "white"))))
    assert outputs.done("blank").data == {"images": [{"lines": [], "labels": []}]}
    engine.close()
    assert outputs.text("blank") == ""
