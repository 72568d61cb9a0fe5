"""Reads an ONNX graph's weights in the order of its nodes, each with the bias or statistics that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
from onnx import numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A (transposed) convolution; a batch norm after it is either ``norm`` or folded into weight and bias."""

    weight: NDArray[Any]
    bias: NDArray[Any] | None
    #: Scale, bias, mean and variance.
    norm: tuple[NDArray[Any], ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """A matrix product or a layer norm's scaling, with the addition that follows it."""

    weight: NDArray[Any]
    bias: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphWeights:
    """All weights of a graph, each kind in the order of execution."""

    convolutions: tuple[Convolution, ...]
    linears: tuple[Affine, ...]
    layer_norms: tuple[Affine, ...]
    metadata: dict[str, str]


def read_onnx(path: Path) -> GraphWeights:
    """Read a graph made of convolutions, batch norms, matrix products and layer norms."""
    model = onnx.load(str(path))
    graph = _Graph(model.graph)
    return GraphWeights(
        convolutions=tuple(graph.convolution(node) for node in graph.nodes if node.op_type in _CONVOLUTIONS),
        linears=tuple(graph.affine(node) for node in graph.nodes if graph.is_weighted(node, "MatMul")),
        layer_norms=tuple(graph.affine(node) for node in graph.nodes if graph.is_weighted(node, "Mul")),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


_CONVOLUTIONS = ("Conv", "ConvTranspose")


class _Graph:
    """The graph without its Identity nodes, and who uses which value."""

    def __init__(self, graph: Any) -> None:
        self._values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._renamed = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
        self.nodes = [node for node in graph.node if node.op_type != "Identity"]
        self._users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self._users.setdefault(self._origin(name), []).append(node)

    def convolution(self, node: Any) -> Convolution:
        bias = norm = None
        for user in self._users[node.output[0]]:
            if user.op_type == "BatchNormalization":
                norm = tuple(self._value(name) for name in user.input[1:])
            elif user.op_type == "Add" and self._is_weight(user.input[1]):
                bias = self._value(user.input[1]).reshape(-1)
        return Convolution(weight=self._value(node.input[1]), bias=bias, norm=norm)

    def affine(self, node: Any) -> Affine:
        addition = self._users[node.output[0]][0]
        return Affine(weight=self._value(node.input[1]), bias=self._value(addition.input[1]))

    def is_weighted(self, node: Any, op_type: str) -> bool:
        """Tell whether the node multiplies by a weight rather than by a value or a single number."""
        return (
            node.op_type == op_type and self._is_weight(node.input[1]) and self._value(node.input[1]).size > 1
        )

    def _is_weight(self, name: str) -> bool:
        return self._origin(name) in self._values

    def _value(self, name: str) -> NDArray[Any]:
        value: NDArray[Any] = self._values[self._origin(name)]
        return value

    def _origin(self, name: str) -> str:
        while name in self._renamed:
            name = self._renamed[name]
        return name
