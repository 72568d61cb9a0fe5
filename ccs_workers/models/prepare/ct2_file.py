"""Reads a CTranslate2 model file (binary version 6): variables by name, as numpy arrays."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_BINARY_VERSION = 6
_DTYPES: Final = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_ct2(path: Path, specification: str) -> dict[str, NDArray[Any]]:
    """Return all variables of the file, aliases included; the arrays read from the mapped file.

    ``specification`` is the model class the file must name, such as ``WhisperSpec``.
    """
    with path.open("rb") as stream:
        reader = _Reader(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    version, name = reader.scalar("I"), reader.string()
    if version != _BINARY_VERSION or name != specification:
        raise ValueError(
            f"{path.name} holds {name} in version {version}, not {specification} in {_BINARY_VERSION}"
        )
    reader.scalar("I")  # the revision of the specification
    variables = dict(reader.variable() for _ in range(reader.scalar("I")))
    for _ in range(reader.scalar("I")):
        alias, original = reader.string(), reader.string()
        variables[alias] = variables[original]
    return variables


class _Reader:
    """A position in the mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def scalar(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize("<" + code)
        return int(value)

    def string(self) -> str:
        length = self.scalar("H")  # counts the closing zero byte
        self._position += length
        return self._data[self._position - length : self._position - 1].decode("utf-8")

    def variable(self) -> tuple[str, NDArray[Any]]:
        name = self.string()
        shape = [self.scalar("I") for _ in range(self.scalar("B"))]
        dtype = np.dtype(_DTYPES[self.scalar("B")])
        size_bytes = self.scalar("I")
        values = np.frombuffer(self._data, dtype, size_bytes // dtype.itemsize, self._position)
        self._position += size_bytes
        return name, values.reshape(shape)
