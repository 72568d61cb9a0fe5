"""Converts PP-OCRv6 small, which finds lines of text (``det``) and reads them (``rec``), from ONNX."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import torch
from transformers import (
    PPLCNetV4Config,
    PPOCRV6SmallDetConfig,
    PPOCRV6SmallDetForObjectDetection,
    PPOCRV6SmallRecConfig,
    PPOCRV6SmallRecForTextRecognition,
)

from ccs_workers.models.prepare.fill import fill
from ccs_workers.models.prepare.onnx_file import read_onnx

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ccs_workers.models.prepare.onnx_file import Convolution

_FOLDER = "rapidocr/models"
_KERNEL = 3
_CHANNELS: Final = (48, 96, 192, 384)
#: Blocks of each stage after its first one: whether they have squeeze-excite.
_SQUEEZE: Final = ((False,), (True, False), (True, False, True, False), (True, False))
#: The neck's convolutions: 4 levels of 3 that bring features in, then 4 levels of 4 that mix them.
_LEVELS, _IN_PER_LEVEL, _MIX_PER_LEVEL = 4, 3, 4


def convert_detector(unpacked: Path, target: Path) -> None:
    """Write the folder of the line finder."""
    config = PPOCRV6SmallDetConfig(backbone_config=_backbone(), layer_list_out_channels=list(_CHANNELS))
    model = PPOCRV6SmallDetForObjectDetection(config)
    weights = read_onnx(unpacked / _FOLDER / "PP-OCRv6_det_small.onnx")
    fill(model, torch.zeros(1, 3, 64, 64), weights, _neck_order)
    model.save_pretrained(target)


def convert_reader(unpacked: Path, target: Path) -> None:
    """Write the folder of the line reader, with ``characters.json``: the character of each class."""
    weights = read_onnx(unpacked / _FOLDER / "PP-OCRv6_rec_small.onnx")
    classes = weights.linears[-1].weight.shape[1]
    model = PPOCRV6SmallRecForTextRecognition(PPOCRV6SmallRecConfig(head_out_channels=classes))
    fill(model, torch.zeros(1, 3, 48, 320), weights)
    model.save_pretrained(target)
    # Class 0 is the blank that separates repeated characters; the last one is the space.
    characters = ["", *weights.metadata["character"].split("\n"), " "]
    if len(characters) != classes:
        raise ValueError(f"the reader tells {classes} classes apart, its alphabet has {len(characters)}")
    (target / "characters.json").write_text(json.dumps(characters, ensure_ascii=False), encoding="utf-8")


def _backbone() -> PPLCNetV4Config:
    stages = []
    before = _CHANNELS[0]
    for channels, squeeze in zip(_CHANNELS, _SQUEEZE, strict=True):
        first = [_KERNEL, before, channels, 1 if channels == before else 2, channels == before]
        stages.append([first, *([_KERNEL, channels, channels, 1, has] for has in squeeze)])
        before = channels
    return PPLCNetV4Config(
        stem_channels=[3, 24, 48],
        out_features=["stage1", "stage2", "stage3", "stage4"],
        block_configs=stages,
    )


def _neck_order(names: Sequence[str], weights: Sequence[Convolution]) -> Sequence[Convolution]:
    """Turn the neck's levels round: the graph runs them coarse to fine, the model fine to coarse."""
    start = next(index for index, name in enumerate(names) if "neck.insert_conv.0" in name)
    middle = start + _LEVELS * _IN_PER_LEVEL
    end = middle + _LEVELS * _MIX_PER_LEVEL
    return [
        *weights[:start],
        *_levels_reversed(weights[start:middle], _IN_PER_LEVEL),
        *_levels_reversed(weights[middle:end], _MIX_PER_LEVEL),
        *weights[end:],
    ]


def _levels_reversed(weights: Sequence[Convolution], size: int) -> list[Convolution]:
    levels = [weights[start : start + size] for start in range(0, len(weights), size)]
    return [weight for level in reversed(levels) for weight in level]
