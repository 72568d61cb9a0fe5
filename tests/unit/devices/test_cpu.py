"""The CPU's memory: within made-up limits, and within a real cgroup where one can be made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from ccs_workers.devices import find_device
from ccs_workers.devices.cgroup import Bound, cgroup_bounds
from ccs_workers.devices.cpu import cpu_device, footprints
from tests.helpers import running, wait_until
from tests.nvml_stub import SOURCE

MIB = 1 << 20
GIB = 1 << 30


def machine(total=64 * GIB, used=4 * GIB):
    return lambda: Bound(key="machine", limit_bytes=total, used_bytes=used, cache_bytes=total)


def unknown():
    return Bound(key="machine", limit_bytes=None, used_bytes=None, reason="nothing to ask")


@pytest.fixture
def grouped(tmp_path):
    """A machine with cgroups of the second version: its folder, from (path, limit, usage, cache) of the groups."""

    def made(*groups):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text(f"0::/{groups[0][0]}\n")
        (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
        for path, limit, used, cache in groups:
            folder = tmp_path / "cg" / path
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "memory.max").write_text(f"{limit}\n")
            (folder / "memory.current").write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"inactive_file {cache}\n")
        return tmp_path

    return made


def memory(reading):
    return (reading.total_bytes, reading.used_bytes, reading.others_bytes)


def test_without_a_limit_it_is_the_machines(tmp_path):
    device = cpu_device(tmp_path, machine())
    assert memory(device.read()) == (64 * GIB, 4 * GIB, 4 * GIB)
    assert (device.name, device.kind, device.visible) == ("cpu", "cpu", "")


def test_the_lowest_limit_is_the_total(grouped):
    root = grouped(("a/b", 8 * GIB, 3 * GIB, GIB), ("a", 16 * GIB, 5 * GIB, 0))
    assert memory(cpu_device(root, machine()).read()) == (8 * GIB, 2 * GIB, 2 * GIB)


def test_a_limit_above_the_machines_memory_is_none(grouped):
    root = grouped(("a", 9223372036854771712, 99 * GIB, 0))
    assert memory(cpu_device(root, machine()).read()) == (64 * GIB, 4 * GIB, 4 * GIB)


def test_room_is_the_least_that_any_level_leaves(grouped):
    """Siblings fill the group above, or other containers the machine: what is left there is all there is."""
    root = grouped(("a/b", 8 * GIB, GIB, 0), ("a", 16 * GIB, 15 * GIB, 0))
    assert memory(cpu_device(root, machine()).read()) == (8 * GIB, 7 * GIB, 7 * GIB)
    full = cpu_device(root, machine(used=63 * GIB + 512 * MIB)).read()
    assert full.free_bytes == 512 * MIB
    assert full.total_bytes == 8 * GIB


def test_over_a_limit_there_is_no_room_and_no_less(grouped):
    root = grouped(("a", 8 * GIB, 9 * GIB, 0))
    reading = cpu_device(root, machine()).read()
    assert memory(reading) == (8 * GIB, 8 * GIB, 8 * GIB)
    assert reading.free_bytes == 0


def test_what_is_unknown_is_none_with_its_reason(grouped):
    root = grouped(("a", 8 * GIB, "garbage", 0))
    reading = cpu_device(root, machine()).read([os.getpid()])
    assert memory(reading) == (8 * GIB, None, None)
    assert reading.reason == "memory.current can't be read: 'garbage'"
    assert reading.by_pid[os.getpid()] > MIB
    reading = cpu_device(grouped(("a", "garbage", 5, 0)), machine()).read()
    assert memory(reading) == (None, None, None)
    assert reading.reason == "memory.max can't be read: 'garbage'"
    reading = cpu_device(root, unknown).read()
    assert memory(reading) == (None, None, None)
    assert "nothing to ask" in cpu_device(root.parent, unknown).read().reason


def test_processes_share_a_name_if_they_share_a_limit(grouped):
    root = grouped(("a/b", 8 * GIB, 0, 0), ("a", 4 * GIB, 0, 0), ("a/c", 8 * GIB, 0, 0))
    first = cpu_device(root, machine()).uuid
    (root / "proc/self/cgroup").write_text("0::/a/c\n")
    assert cpu_device(root, machine()).uuid == first
    (root / "cg/a/memory.max").write_text("max\n")
    second = cpu_device(root, machine()).uuid
    assert second != first
    assert re.fullmatch(r"cpu-\S+-[0-9a-f]{12}", second)
    # Without a limit of their own, all share the machine.
    assert cpu_device(root / "nowhere", machine()).uuid == cpu_device(root / "else", unknown).uuid


HOLD = """
import mmap, sys
own = bytearray(int(sys.argv[1]))
own[::4096] = b"x" * len(own[::4096])
if len(sys.argv) > 2:
    file = open(sys.argv[2], "rb")
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    total = sum(mapped[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(own_bytes, *file):
    """A process that holds this much of its own, and a mapped file."""
    command = [sys.executable, "-c", HOLD, str(own_bytes), *map(str, file)]
    with running(command, stdin=subprocess.PIPE) as process, process.stdin:
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(64 * MIB))
    return path


def test_a_footprint_is_what_is_private_and_a_part_of_what_is_shared(weights):
    with holder(96 * MIB, weights) as first, holder(0, weights) as second:
        found = footprints([first.pid, second.pid])
    assert 96 * MIB < found[first.pid].private_bytes < 120 * MIB
    assert found[second.pid].private_bytes < 24 * MIB
    if sys.platform == "linux":
        # The file is in memory once, half of it for each.
        for pid in found:
            assert 30 * MIB < found[pid].mapped_bytes < 48 * MIB


def test_our_processes_are_not_others(grouped, weights):
    with holder(96 * MIB, weights) as process:
        (own,) = footprints([process.pid]).values()
        active, dropped = (
            cpu_device(grouped(("a", GIB, 900 * MIB + cache, cache)), machine()).read([process.pid])
            for cache in (0, 500 * MIB)
        )
    # What the kernel may drop isn't used, and so isn't ours either.
    assert active.others_bytes == pytest.approx(900 * MIB - own.private_bytes - own.mapped_bytes, abs=MIB)
    assert dropped.others_bytes == pytest.approx(900 * MIB - own.private_bytes, abs=MIB)
    assert active.by_pid[process.pid] == pytest.approx(own.private_bytes + own.mapped_bytes, abs=MIB)


def test_a_process_that_has_ended_uses_nothing(tmp_path):
    with running([sys.executable, "-c", ""]) as process:
        process.wait()
        reading = cpu_device(tmp_path, machine()).read([process.pid])
    assert reading.others_bytes == reading.used_bytes
    assert reading.by_pid == {}


def test_the_real_machine():
    reading = find_device("cpu").read([os.getpid()])
    assert reading.total_bytes is not None
    assert 0 < reading.total_bytes <= psutil.virtual_memory().total
    assert reading.used_bytes is not None
    assert reading.others_bytes is not None
    assert 0 <= reading.others_bytes < reading.used_bytes <= reading.total_bytes
    assert reading.by_pid[os.getpid()] > MIB
    assert reading.reason == ""


def _memory_group():
    """The folder of this process's group of memory, with the name of its file of limits."""
    rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.strip("/"), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup") / rows[-1][2].strip("/"), "memory.max"


@pytest.fixture
def real_group():
    """A new cgroup below our own, with a limit of 256 MiB; gone at the end."""
    if sys.platform != "linux" or not Path("/proc/self/cgroup").exists():
        pytest.skip("no cgroups on this system")
    parent, name = _memory_group()
    group = parent / f"ccs-test-{uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a cgroup can't be made here: {error.strerror}")
    try:
        try:
            (group / name).write_text(str(256 * MIB))
        except OSError as error:
            pytest.skip(f"a cgroup of ours can't be given a limit here: {error.strerror}")
        yield group
    finally:
        wait_until(lambda: _removed(group), message=f"{group} holds a process")


def _removed(group):
    try:
        group.rmdir()
    except OSError:
        return False
    return True


INSIDE = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from ccs_workers.devices import find_device
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
device = find_device("cpu")
own, none = device.read([os.getpid()]), device.read()
print(json.dumps([device.uuid, own.total_bytes, own.used_bytes, own.others_bytes, none.others_bytes, own.reason]))
"""


def test_a_process_inside_a_real_cgroup_sees_its_limit(real_group):
    run = subprocess.run(
        [sys.executable, "-c", INSIDE, real_group],
        cwd=SOURCE.parent.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if "PermissionError" in run.stderr:
        pytest.skip("processes can't be moved between cgroups here")
    assert run.returncode == 0, run.stderr
    uuid, total, used, others, everybody, reason = json.loads(run.stdout)
    assert (total, reason) == (256 * MIB, "")
    # Alone in there: most of what is used is its own, and it isn't more than the limit.
    assert 64 * MIB < used < 200 * MIB
    assert everybody >= used - 8 * MIB
    assert others < used - 64 * MIB
    assert uuid != find_device("cpu").uuid
    assert all(bound.limit_bytes != total for bound in cgroup_bounds())
