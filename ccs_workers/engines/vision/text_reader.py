"""Reads upright text in a picture with PP-OCR's two models: one finds lines, the other reads them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from transformers import AutoModelForTextRecognition, PPOCRV6SmallDetForObjectDetection
from transformers.utils import cached_file

from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.loading import load_pretrained, weights_bytes
from ccs_workers.engines.vision.boxes import find_boxes, in_rows
from ccs_workers.engines.vision.pixels import finder_pixels, reader_pixels

if TYPE_CHECKING:
    from ccs_workers.engines.vision.boxes import Box
    from ccs_workers.models.spec import ModelSpec

__all__ = ["TextReader"]

_FINDER_FOLDER = "ocr/det"
_READER_FOLDER = "ocr/rec"
_CHARACTERS = "characters.json"
#: A step of the reader is a sixth of the line's height; no two characters of a word are this far apart.
_GAP_STEPS = 10


class TextReader:
    """The loaded pair, in float32."""

    def __init__(self, spec: ModelSpec, device: torch.device, read_side: int) -> None:
        """Load both from the model's folders ``ocr/det`` and ``ocr/rec``.

        Raises:
            ConfigurationError: a folder isn't whole, or the alphabet doesn't fit the reader.
        """
        self._device = device
        self._read_side = read_side
        self._finder = load_pretrained(
            PPOCRV6SmallDetForObjectDetection, spec, device, subfolder=_FINDER_FOLDER
        )
        self._reader = load_pretrained(AutoModelForTextRecognition, spec, device, subfolder=_READER_FOLDER)
        self._characters = _characters(spec)
        self.weights_bytes = weights_bytes(self._finder, self._reader)
        self._probe(spec)

    def find(self, image: Image.Image) -> list[list[Box]]:
        """Return the rows of text in an RGB picture from the top, each with its boxes from the left."""
        pixels = torch.from_numpy(finder_pixels(image, self._read_side))[None].to(self._device)
        with torch.inference_mode():
            probabilities = self._finder(pixels).last_hidden_state[0, 0]
        return in_rows(find_boxes(probabilities.float().cpu().numpy(), image.width, image.height))

    def read(self, image: Image.Image, box: Box) -> tuple[str, float]:
        """Return the text in one box and the mean confidence of its characters (0 where there is none)."""
        line = image.crop((int(box.left), int(box.top), math.ceil(box.right), math.ceil(box.bottom)))
        confidences, classes = self._scores(line).max(-1)
        # Each step names a character; repetitions count once, and class 0 stands between true repetitions.
        changed = torch.cat([classes.new_ones(1, dtype=torch.bool), classes[1:] != classes[:-1]])
        steps = (changed & (classes != 0)).nonzero().flatten()
        if not len(steps):
            return "", 0.0
        characters = [self._characters[index] for index in classes[steps].tolist()]
        return _with_gaps(characters, steps.tolist()), round(float(confidences[steps].mean()), 4)

    def _scores(self, line: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(reader_pixels(line))[None].to(self._device)
        with torch.inference_mode():
            scores: torch.Tensor = self._reader(pixels).last_hidden_state[0]
        return scores.float().cpu()

    def _probe(self, spec: ModelSpec) -> None:
        blank = Image.new("RGB", (64, 48), "white")
        scores = self._scores(blank)
        if scores.shape[-1] != len(self._characters):
            raise ConfigurationError(
                f"model {spec.alias!r}: the reader tells {scores.shape[-1]} characters apart, "
                f"{_CHARACTERS} has {len(self._characters)}"
            )
        if not torch.isfinite(scores).all():
            raise ConfigurationError(f"model {spec.alias!r}: the reader's scores aren't finite")
        self.find(blank)


def _with_gaps(characters: list[str], steps: list[int]) -> str:
    """Join characters read at these steps; the reader leaves out the space where a gap is very wide."""
    pieces: list[str] = []
    last_step = steps[0]
    for character, step in zip(characters, steps, strict=True):
        if step - last_step >= _GAP_STEPS and character != " " and pieces[-1] != " ":
            pieces.append(" ")
        pieces.append(character)
        last_step = step
    return "".join(pieces).strip()


def _characters(spec: ModelSpec) -> list[str]:
    place = f"model {spec.alias!r}: {spec.source}/{_READER_FOLDER}/{_CHARACTERS}"
    try:
        found: Any = cached_file(
            spec.source,
            _CHARACTERS,
            subfolder=_READER_FOLDER,
            revision=spec.revision,
            local_files_only=True,
        )
        characters = json.loads(Path(found).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{place} can't be read: {error}") from error
    if not isinstance(characters, list) or not all(isinstance(one, str) for one in characters):
        raise ConfigurationError(f"{place} must be a list of texts")
    return characters
