"""Pages and photos drawn on the spot, each page with a word that no other has."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ccs_workers.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

__all__ = ["TITLES", "cut_off", "picture_set", "small_page"]

_WORDS: Final = ("Order", "Receipt", "Garden", "North", "Window", "Letter", "Station", "Summer")


def picture_set(title: str, word: str, random: Random) -> tuple[bytes, ...]:
    """The encoded pictures of one job."""
    return _SETS[title](word, random)


def small_page(word: str, random: Random) -> bytes:
    """A picture that takes little time, for neighbours."""
    return _png(_page(word, random, size=24, lines=1))


def cut_off(picture: bytes) -> bytes:
    """The first half of a picture's file."""
    return picture[: len(picture) // 2]


def _page(word: str, random: Random, *, size: int, lines: int = 3) -> Image.Image:
    """Black on white; the word stands in one of the lines."""
    place = random.randrange(lines)
    texts = [
        word if line == place else f"{random.choice(_WORDS)} {random.randint(10, 99)}"
        for line in range(lines)
    ]
    page = Image.new("RGB", (24 * size, (2 * lines + 1) * size), "white")
    _write(page, texts, size)
    return page


def _write(image: Image.Image, texts: Sequence[str], size: int) -> None:
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    for number, text in enumerate(texts):
        pen.text((size, size + 2 * size * number), text, fill="black", font=font)


def _photo(random: Random) -> Image.Image:
    """Soft blots of color with grain, as no page has them."""
    rng = np.random.default_rng(random.getrandbits(32))
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    soft = np.asarray(coarse.resize((400, 300), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = rng.integers(-12, 13, soft.shape, dtype=np.int16)
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


def _with_word(photo: Image.Image, word: str) -> Image.Image:
    ImageDraw.Draw(photo).rectangle((20, 110, 380, 180), fill="white")
    ImageDraw.Draw(photo).text((36, 124), word, fill="black", font=ImageFont.load_default(34))
    return photo


def _png(image: Image.Image) -> bytes:
    return _encoded(image, "PNG")


def _jpeg(image: Image.Image) -> bytes:
    return _encoded(image, "JPEG")


def _encoded(image: Image.Image, kind: str) -> bytes:
    stream = BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


#: Sorts of vision jobs, in order.
_SETS: Final[dict[str, Callable[[str, Random], tuple[bytes, ...]]]] = {
    "page": lambda word, random: (_png(_page(word, random, size=34)),),
    "small print": lambda word, random: (_png(_page(word, random, size=20, lines=6)),),
    "photo": lambda _, random: (_jpeg(_photo(random)),),
    "two pages": lambda word, random: (
        _png(_page(word, random, size=30, lines=2)),
        _jpeg(_page(word, random, size=28, lines=2)),
    ),
    "photo with a word": lambda word, random: (_jpeg(_with_word(_photo(random), word)),),
    "gray page": lambda word, random: (_png(_page(word, random, size=36, lines=2).convert("L")),),
    "sample page": lambda _, __: (sample_path("page.png").read_bytes(),),
    "page between photos": lambda word, random: (
        _jpeg(_photo(random)),
        _png(_page(word, random, size=32, lines=1)),
        _jpeg(_photo(random)),
    ),
}
TITLES: Final = tuple(_SETS)
