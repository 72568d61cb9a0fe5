"""Converts the vision model: ``classify/``, ``ocr/det`` and ``ocr/rec`` in one folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_workers.models.prepare import classify, ocr

if TYPE_CHECKING:
    from pathlib import Path

    from ccs_workers.models.prepare.progress import Step


def convert(unpacked: Path, target: Path, step: Step) -> None:
    """Write the three folders of the vision model from the wheels' unpacked members."""
    parts = (
        ("classify", classify.convert),
        ("ocr/det", ocr.convert_detector),
        ("ocr/rec", ocr.convert_reader),
    )
    for done, (name, convert_part) in enumerate(parts, start=1):
        folder = target / name
        folder.mkdir(parents=True)
        convert_part(unpacked, folder)
        step(done, len(parts))
