"""The readers of foreign weight files, on small files whose values are known."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ccs_workers.models.prepare.ct2_file import read_ct2
from ccs_workers.models.prepare.gguf_file import GgufFile


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf(tensors: list[tuple[str, list[int], int, bytes]], version: int = 3) -> bytes:
    pairs = [
        gguf_string("general.name") + struct.pack("<I", 8) + gguf_string("naïve"),
        gguf_string("ids") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3),
        gguf_string("names") + struct.pack("<IIQ", 9, 8, 2) + gguf_string("a") + gguf_string("b"),
        gguf_string("flag") + struct.pack("<I?", 7, True),
        gguf_string("rate") + struct.pack("<If", 6, 0.5),
    ]
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, dimensions, kind, content in tensors:
        data += gguf_string(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        data += struct.pack("<IQ", kind, offset)
        offset += -(-len(content) // 32) * 32
    data += bytes(-len(data) % 32)
    for *_, content in tensors:
        data += content + bytes(-len(content) % 32)
    return data


def test_gguf_metadata_and_the_three_kinds_of_tensors(tmp_path):
    plain = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
    # One block: scale 0.5, minimum -1; byte i holds i in its low and 15 - i in its high nibble.
    q4_1 = struct.pack("<2e", 0.5, -1.0) + bytes(i | (15 - i) << 4 for i in range(16))
    q8_0 = b"".join(struct.pack("<e32b", scale, *range(-16, 16)) for scale in (2.0, 0.25))
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([("f", [3, 2], 0, plain), ("q4", [32, 1], 3, q4_1), ("q8", [32, 2], 8, q8_0)]))
    file = GgufFile(path)
    assert file.metadata == {
        "general.name": "naïve",
        "ids": [1, -2, 3],
        "names": ["a", "b"],
        "flag": True,
        "rate": 0.5,
    }
    tensors = dict(file.tensors())
    assert len(file) == 3
    assert tensors["f"].tolist() == [[1, 2, 3], [4, 5, 6]]
    expected = [0.5 * i - 1 for i in range(16)] + [0.5 * (15 - i) - 1 for i in range(16)]
    assert tensors["q4"].tolist() == [expected]
    assert tensors["q8"].tolist() == [[2.0 * i for i in range(-16, 16)], [0.25 * i for i in range(-16, 16)]]
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}


def test_gguf_that_is_not_known_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"<html></html>")
    with pytest.raises(ValueError, match="not a GGUF file"):
        GgufFile(path)
    path.write_bytes(gguf([], version=2))
    with pytest.raises(ValueError, match="version 2"):
        GgufFile(path)
    path.write_bytes(gguf([("k", [256], 12, bytes(144))]))
    with pytest.raises(ValueError, match="tensor k has GGUF type 12"):
        list(GgufFile(path).tensors())


def ct2_string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def ct2(specification: str = "WhisperSpec") -> bytes:
    half = np.array([[1, 2, 3], [4, 5, 6]], np.float16).tobytes()
    data = struct.pack("<I", 6) + ct2_string(specification) + struct.pack("<II", 3, 2)
    data += ct2_string("w") + struct.pack("<BIIBI", 2, 2, 3, 4, len(half)) + half
    data += ct2_string("heads") + struct.pack("<BBI", 0, 2, 2) + struct.pack("<h", 6)
    return data + struct.pack("<I", 1) + ct2_string("tied") + ct2_string("w")


def test_ct2_variables_scalars_and_aliases(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(ct2())
    variables = read_ct2(path, "WhisperSpec")
    assert variables["w"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert variables["w"].dtype == np.float16
    assert int(variables["heads"]) == 6
    assert variables["tied"] is variables["w"]


def test_ct2_of_another_model_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(ct2("TransformerSpec"))
    with pytest.raises(ValueError, match="TransformerSpec"):
        read_ct2(path, "WhisperSpec")
