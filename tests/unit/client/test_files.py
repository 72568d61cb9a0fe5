"""Media by path: plain files within their limit are read, anything else is refused before it is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ccs_broker.client.files import read_file
from ccs_broker.contract.build import build_job
from ccs_broker.contract.media import MediaSlot
from ccs_broker.errors import InvalidInputError, PayloadTooLargeError

SLOT = MediaSlot(field="images[0]", limit_name="image_bytes", limit_bytes=10)


def test_a_file_is_read_by_string_and_by_path(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"0123456789")
    assert read_file(str(file), SLOT) == read_file(file, SLOT) == b"0123456789"
    built = build_job("vision", {"images": [file, str(file)]}, job_id="j", read_path=read_file)
    assert list(built.blobs.values()) == [b"0123456789"]


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate(1 << 40)
    with pytest.raises(PayloadTooLargeError, match=f"{1 << 40} bytes are over the limit image_bytes of 10"):
        read_file(file, SLOT)


def test_what_is_no_plain_file_is_refused_and_not_opened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidInputError, match=r"images\[0\]: is not a plain file"):
            read_file(path, SLOT)


@pytest.mark.parametrize("path", ["no-such-file", "", "null\0character", "x" * 100_000, "\ud800"])
def test_a_missing_file_is_told_without_its_name(path):
    with pytest.raises(InvalidInputError, match=r"images\[0\]: can't read the file") as caught:
        read_file(path, SLOT)
    assert not path or path not in str(caught.value)


def test_an_empty_file_is_told(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidInputError, match=r"images\[0\]: is empty"):
        read_file(tmp_path / "empty", SLOT)
