"""Turns to load on a device, between real processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from ccs_broker.errors import ConfigurationError, SetupError
from ccs_workers.devices import start_up
from ccs_workers.devices.cuda import UnmeasuredDevice
from tests.helpers import running, wait_until
from tests.nvml_stub import SOURCE

HOLD = """
import subprocess, sys
from pathlib import Path
from ccs_workers.devices import start_up
from ccs_workers.devices.cuda import UnmeasuredDevice
uuid, folder, log, child = sys.argv[1:]
with start_up(UnmeasuredDevice(uuid=uuid, visible="", reason=""), timeout_s=60, folder=Path(folder)):
    with open(log, "a") as file:
        file.write("in\\n")
    if child == "child":
        left = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
    print(left.pid if child == "child" else "in", flush=True)
    sys.stdin.readline()
    with open(log, "a") as file:
        file.write("out\\n")
print("out", flush=True)
"""


def device(uuid="GPU-a"):
    return UnmeasuredDevice(uuid=uuid, visible="", reason="")


@contextmanager
def loading(folder, uuid="GPU-a", child=""):
    """A process that asks for the turn, says ``in`` when it has it, and leaves at a line of input."""
    command = [sys.executable, "-c", HOLD, uuid, str(folder), str(folder / "log"), child]
    with running(command, stdin=subprocess.PIPE, cwd=SOURCE.parent.parent.parent) as process, process.stdin:
        yield process


def leave(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "out\n"


def test_the_second_enters_after_the_first_has_left(tmp_path):
    with loading(tmp_path) as first:
        assert first.stdout.readline() == "in\n"
        with loading(tmp_path) as second:
            # It waits: the turn can't be had at once by anybody.
            with pytest.raises(SetupError), start_up(device(), timeout_s=0, folder=tmp_path):
                pass
            leave(first)
            assert second.stdout.readline() == "in\n"
            leave(second)
    assert (tmp_path / "log").read_text().split() == ["in", "out", "in", "out"]


def test_eight_at_once_never_overlap(tmp_path):
    inside, seen = 0, []

    def load():
        nonlocal inside
        with start_up(device(), timeout_s=60, folder=tmp_path):
            inside += 1
            seen.append(inside)
            inside -= 1

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [1] * 8


@pytest.mark.parametrize("child", ["", "child"])
def test_a_killed_holder_frees_it(tmp_path, child):
    """Whatever it has started lives on, and must not hold its lock."""
    left = 0
    try:
        with loading(tmp_path, child=child) as first:
            left = int(first.stdout.readline()) if child else 0
            first.send_signal(signal.SIGKILL)
            first.wait()
            with start_up(device(), timeout_s=30, folder=tmp_path):
                pass
    finally:
        if left:
            os.kill(left, signal.SIGKILL)


def test_in_vain_says_who_holds_it(tmp_path, caplog):
    with loading(tmp_path) as first:
        assert first.stdout.readline() == "in\n"
        with (
            caplog.at_level(logging.INFO),
            pytest.raises(
                ConfigurationError, match=rf"waited 0.2 s for process {first.pid} on \S+, which is loading"
            ),
            start_up(device(), timeout_s=0.2, folder=tmp_path),
        ):
            pass
        assert [f"waiting for process {first.pid} on" in record.message for record in caplog.records] == [
            True
        ]
        leave(first)


def test_devices_have_turns_of_their_own(tmp_path):
    with loading(tmp_path) as first:
        assert first.stdout.readline() == "in\n"
        with start_up(device("MIG-GPU-a/1/0"), timeout_s=0, folder=tmp_path):
            pass
        leave(first)


def test_an_error_inside_ends_the_turn(tmp_path):
    with (
        pytest.raises(RuntimeError, match="loading failed"),
        start_up(device(), timeout_s=0, folder=tmp_path),
    ):
        raise RuntimeError("loading failed")
    with start_up(device(), timeout_s=0, folder=tmp_path):
        assert [path.read_text().split()[:2] for path in tmp_path.iterdir()] == [
            ["process", str(os.getpid())]
        ]
    # The file stays, for its name is the lock's; nobody is named in it.
    assert [path.read_text() for path in tmp_path.iterdir()] == [""]


def test_the_temporary_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with start_up(device(), timeout_s=0):
        assert [path.name for path in tmp_path.iterdir()] == [f"ccs-start-up-{os.getuid()}-GPU-a.lock"]


@pytest.mark.parametrize("obstacle", ["link", "folder", "pipe", "no folder"])
def test_what_cannot_be_a_lock_is_refused(tmp_path, obstacle):
    path = tmp_path / f"ccs-start-up-{os.getuid()}-GPU-a.lock"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path
    if obstacle == "link":
        path.symlink_to(victim)
    elif obstacle == "folder":
        path.mkdir()
    elif obstacle == "pipe":
        os.mkfifo(path)
    else:
        folder = tmp_path / "nowhere"
    with (
        pytest.raises(SetupError, match="set TMPDIR to another folder"),
        start_up(device(), timeout_s=0, folder=folder),
    ):
        pass
    assert victim.read_text() == "precious"


def test_a_name_in_the_file_that_we_did_not_write_is_not_shown(tmp_path):
    with loading(tmp_path) as first:
        assert first.stdout.readline() == "in\n"
        (path,) = (path for path in tmp_path.iterdir() if path.suffix == ".lock")
        path.write_text("process 1 on \x1b[31mfire")
        with (
            pytest.raises(SetupError, match="waited 0 s for another process"),
            start_up(device(), timeout_s=0, folder=tmp_path),
        ):
            pass
        wait_until(lambda: first.poll() is None)
        leave(first)
