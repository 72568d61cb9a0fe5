"""Fills a model's layers with a graph's weights by pairing both in their order of execution.

ONNX files of PaddlePaddle models name their weights by number alone, so names can't be mapped; the order in
which one forward pass reaches the layers can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ccs_workers.models.prepare.onnx_file import Affine, Convolution, GraphWeights

    Reorder = Callable[[Sequence[str], Sequence[Convolution]], Sequence[Convolution]]

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
_LAYERS = (*_CONVOLUTIONS, nn.BatchNorm2d, nn.LayerNorm, nn.Linear)


def fill(
    model: nn.Module, example: torch.Tensor, weights: GraphWeights, reorder: Reorder | None = None
) -> None:
    """Copy all weights into ``model``; ``example`` is an input for the pass that finds the order.

    ``reorder`` puts the graph's convolutions into the model's order where the two differ. A count or shape
    that doesn't fit raises ``ValueError``.
    """
    executed = _executed(model.eval(), example)
    names = [name for name, layer in executed if isinstance(layer, _CONVOLUTIONS)]
    convolutions = reorder(names, weights.convolutions) if reorder else weights.convolutions
    with torch.no_grad():
        _fill_convolutions(executed, convolutions)
        _fill_affine(executed, nn.Linear, weights.linears, transpose=True)
        _fill_affine(executed, nn.LayerNorm, weights.layer_norms, transpose=False)


def _executed(model: nn.Module, example: torch.Tensor) -> list[tuple[str, nn.Module]]:
    order: list[tuple[str, nn.Module]] = []
    hooks = [
        module.register_forward_hook(lambda layer, _inputs, _output, name=name: order.append((name, layer)))
        for name, module in model.named_modules()
        if isinstance(module, _LAYERS)
    ]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()
    return order


def _fill_convolutions(executed: list[tuple[str, nn.Module]], weights: Sequence[Convolution]) -> None:
    followers = [layer for _, layer in executed[1:]] + [None]
    layers = [
        (name, layer, follower if isinstance(follower, nn.BatchNorm2d) else None)
        for (name, layer), follower in zip(executed, followers, strict=True)
        if isinstance(layer, _CONVOLUTIONS)
    ]
    _same_count("convolutions", layers, weights)
    for (name, layer, norm), given in zip(layers, weights, strict=True):
        _copy(layer.weight, given.weight, name)
        if norm is None:
            if (layer.bias is None) != (given.bias is None):
                raise ValueError(f"layer {name}: only one side has a bias")
            if given.bias is not None:
                _copy(layer.bias, given.bias, name)
            continue
        if layer.bias is not None:
            layer.bias.zero_()
        _fill_norm(norm, given, name)


def _fill_norm(norm: nn.BatchNorm2d, given: Convolution, name: str) -> None:
    if given.norm is not None:
        parts = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        for part, values in zip(parts, given.norm, strict=True):
            _copy(part, values, name)
        return
    if given.bias is None:
        raise ValueError(f"layer {name}: neither batch norm nor bias in the graph")
    # The graph has the norm folded into the convolution; ours adds the bias and scales by exactly one.
    norm.running_mean.zero_()
    norm.running_var.fill_(1.0)
    norm.weight.fill_((1 + norm.eps) ** 0.5)
    _copy(norm.bias, given.bias, name)


def _fill_affine(
    executed: list[tuple[str, nn.Module]],
    kind: type[nn.Module],
    weights: Sequence[Affine],
    *,
    transpose: bool,
) -> None:
    layers: list[tuple[str, Any]] = [(name, layer) for name, layer in executed if isinstance(layer, kind)]
    _same_count(f"{kind.__name__} layers", layers, weights)
    for (name, layer), given in zip(layers, weights, strict=True):
        _copy(layer.weight, given.weight.T if transpose else given.weight, name)
        _copy(layer.bias, given.bias, name)


def _same_count(what: str, layers: Sequence[Any], weights: Sequence[Any]) -> None:
    if len(layers) != len(weights):
        raise ValueError(f"the model runs {len(layers)} {what}, the graph {len(weights)}")


def _copy(target: Any, values: NDArray[Any], name: str) -> None:
    if tuple(target.shape) != values.shape:
        raise ValueError(f"layer {name}: shape {values.shape} given, {tuple(target.shape)} wanted")
    target.copy_(torch.tensor(values))
