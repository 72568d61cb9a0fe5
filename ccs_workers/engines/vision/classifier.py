"""Names what a picture shows, with an image classifier of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.loading import load_part, load_pretrained, weights_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.models.spec import ModelSpec

__all__ = ["Classifier"]

_FOLDER = "classify"


class Classifier:
    """The loaded classifier, in float32."""

    def __init__(self, spec: ModelSpec, device: torch.device, top_k: int) -> None:
        """Load from the model's folder ``classify``.

        Raises:
            ConfigurationError: the folder isn't whole, or its scores aren't numbers.
        """
        self._device = device
        # The processors on Pillow are the reference; the others need torchvision.
        self._processor = load_part(AutoImageProcessor.from_pretrained, spec, _FOLDER, backend="pil")
        self._shrunk = _size_of(self._processor)
        self._model = load_pretrained(AutoModelForImageClassification, spec, device, subfolder=_FOLDER)
        self._names: dict[int, str] = self._model.config.id2label
        self._top_k = min(top_k, len(self._names))
        self.weights_bytes = weights_bytes(self._model)
        if not torch.isfinite(self._scores([self.pixels(Image.new("RGB", (32, 32)))])).all():
            raise ConfigurationError(f"model {spec.alias!r}: the classifier's scores aren't finite")

    def pixels(self, image: Image.Image) -> torch.Tensor:
        """Return (1, 3, height, width) of an RGB picture, the same size for every picture."""
        if self._shrunk is not None:
            # As its processor does it, which would copy the whole picture some times before.
            image = image.resize(self._shrunk, self._processor.resample)
        pixels: torch.Tensor = self._processor(image, return_tensors="pt").pixel_values
        return pixels

    def classify(self, batch: Sequence[torch.Tensor]) -> list[list[tuple[str, float]]]:
        """Return the likeliest labels of each picture with their probabilities, the likeliest first."""
        scores, classes = self._scores(batch).topk(self._top_k)
        return [
            [(self._names[index], round(score, 4)) for score, index in zip(*row, strict=True)]
            for row in zip(scores.tolist(), classes.tolist(), strict=True)
        ]

    @property
    def copies_pictures(self) -> bool:
        """Whether the processor works on whole pictures."""
        return self._shrunk is None

    def _scores(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.inference_mode():
            logits = self._model(torch.cat(list(batch)).to(self._device)).logits
        scores: torch.Tensor = logits.float().softmax(-1).cpu()
        return scores


def _size_of(processor: Any) -> tuple[int, int] | None:
    """Width and height to which a processor brings every picture first; None if it does something else."""
    size = processor.size
    if not (processor.do_resize and size.height and size.width) or processor.resample is None:
        return None
    return size.width, size.height
