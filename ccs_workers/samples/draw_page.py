"""Draws ``page.png``: ``python -m ccs_workers.samples.draw_page page.png``. Its font is the one inside Pillow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LINES", "draw_page"]

#: What is written on the page, line by line.
LINES: Final = (
    "HARBOR STREET BAKERY",
    "Invoice 2041 of 14 May",
    "12 sourdough loaves at 4.50",
    "30 poppy seed rolls at 0.80",
    "Total due: 78.00 EUR",
    "Thank you, and see you on Friday!",
)
_SIZE: Final = (760, 640)
_MARGIN: Final = 80
_PAPER, _INK, _ACCENT, _RULE = "#fdfbf6", "#22262b", "#8a3b1e", "#d9cdb8"
#: Top edge, font size and color of each line.
_PLACES: Final = (
    (70, 46, _ACCENT),
    (150, 26, _INK),
    (248, 32, _INK),
    (308, 32, _INK),
    (414, 38, _INK),
    (528, 26, _ACCENT),
)
_RULES_AT: Final = (214, 382, 494)


def draw_page() -> Image.Image:
    """Return the page, drawn anew."""
    page = Image.new("RGB", _SIZE, _PAPER)
    pen = ImageDraw.Draw(page)
    for line, (top, size, color) in zip(LINES, _PLACES, strict=True):
        pen.text((_MARGIN, top), line, fill=color, font=ImageFont.load_default(size))
    for top in _RULES_AT:
        pen.line((_MARGIN, top, _SIZE[0] - _MARGIN, top), fill=_RULE, width=2)
    return page


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file named on the command line."""
    draw_page().quantize(64).save(arguments[0], optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
