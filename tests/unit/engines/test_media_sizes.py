"""What pictures and sounds take, by their headers: never below what decoding them really takes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from ccs_broker.errors import InvalidImageError
from ccs_workers.engines.media import (
    AudioLimits,
    ImageLimits,
    decode_image,
    size_of_picture,
    size_of_sound,
)
from tests.media_jobs import encode, picture, tone

SIDE = 4096
MB = 2**20


def size_of(image: Image.Image, container: str = "PNG", **settings: object):
    return size_of_picture(picture(image, container, **settings), ImageLimits(), longest_side=SIDE)


def test_an_rgb_picture_is_held_with_four_bytes_a_pixel():
    size = size_of(Image.new("RGB", (300, 200)))
    assert size.held_bytes == 4 * 300 * 200
    # Processing it for a model takes more than decoding and turning it, which have another copy.
    assert size.step_bytes == 12 * 300 * 200


@pytest.mark.parametrize(
    ("mode", "container", "settings", "decoding"),
    [
        ("L", "PNG", {}, 1 + 4 + 12),
        ("P", "GIF", {}, None),
        ("RGBA", "PNG", {}, 4 + 4 + 12),
        ("I;16", "PNG", {}, 2 + 4 + 36),
        ("RGB", "JPEG", {"progressive": True}, 4 + 6),
    ],
)
def test_other_modes_and_coders_take_more_while_they_are_decoded(mode, container, settings, decoding):
    image = (
        Image.fromarray(np.zeros((200, 300), np.uint16)) if mode == "I;16" else Image.new(mode, (300, 200))
    )
    size = size_of(image, container, **settings)
    assert size.held_bytes == 4 * 60_000
    if decoding is not None:
        # Decoded, made upright; what is held of that counts as held.
        assert size.step_bytes == max(12, decoding + 4 - 4) * 60_000


def test_a_large_picture_is_held_as_it_is_made_smaller():
    size = size_of(Image.new("RGB", (8192, 4096)))
    assert size.held_bytes == 4 * 4096 * 2048
    assert size.step_bytes >= 4 * 8192 * 4096


def test_a_jpeg_is_made_smaller_while_it_is_decoded():
    png, jpeg = (size_of(Image.new("RGB", (8400, 4200)), container) for container in ("PNG", "JPEG"))
    assert jpeg.held_bytes == png.held_bytes == 4 * 4096 * 2048
    assert jpeg.step_bytes < png.step_bytes / 2


def test_a_bad_header_is_refused_as_it_is_by_decoding():
    with pytest.raises(InvalidImageError):
        size_of_picture(b"\x89PNG\r\n\x1a\nnothing", ImageLimits(), longest_side=SIDE)


def test_a_machine_without_memory_is_not_the_pictures_fault(monkeypatch):
    def load(_):
        raise MemoryError

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    with pytest.raises(MemoryError):
        decode_image(picture(Image.new("RGB", (30, 20))), ImageLimits())


def test_a_sound_takes_its_bytes_and_a_minute_of_its_samples():
    data = encode(tone(90.0, 8_000), 8_000)
    size = size_of_sound(data, AudioLimits())
    assert size.duration_s == 90.0
    assert size.held_bytes == len(data) + MB + 90 * 400
    assert size.step_bytes == 60 * 8_000 * 16 + 16 * MB
    short = size_of_sound(encode(tone(2.0, 8_000), 8_000), AudioLimits())
    assert short.step_bytes == 2 * 8_000 * 16 + 16 * MB


def test_an_mp3_that_must_be_completed_counts_twice():
    data = encode(tone(3.0), container="MP3")
    assert size_of_sound(data, AudioLimits()).held_bytes in {
        len(data) + MB + round(seconds * 400) for seconds in (3.0, 3.024, 3.06, 3.096)
    } or size_of_sound(data, AudioLimits()).held_bytes > 2 * len(data)
