"""Children of the local system: nothing they started outlives them, and they don't outlive their parent."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest

from ccs_workers.cli.processes import Child, stop_all
from tests.helpers import process_runs, running, wait_until

#: Writes its own and its child's process id; heeds SIGTERM only if told to.
FAMILY = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf])
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), child.pid, os.environ.get("CCS_TEST_WORD"), os.getcwd(), flush=True)
time.sleep(60)
"""

PARENT = """
import sys, time
from pathlib import Path
from ccs_workers.cli.processes import Child
child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(60)
"""


def family(tmp_path, kind: str, **options: object) -> tuple[Child, list[int]]:
    child = Child(kind, [sys.executable, "-c", FAMILY, kind], log=tmp_path / f"{kind}.log", **options)
    line = wait_until(child.tail, message="the child writes its line")
    return child, [int(word) for word in line.split()[:2]]


@pytest.mark.parametrize("kind", ["mild", "stubborn"])
def test_a_child_is_ended_with_all_it_started(tmp_path, kind):
    child, pids = family(tmp_path, kind)
    assert child.alive
    assert child.pid == pids[0]
    stop_all([child], limit_s=0.5)
    assert not child.alive
    wait_until(lambda: not any(process_runs(pid) for pid in pids), message="all of the family have ended")


def test_several_children_share_one_limit(tmp_path):
    children = [family(tmp_path, "stubborn")[0], family(tmp_path, "stubborn")[0]]
    stop_all(children, limit_s=0.3)
    assert not any(child.alive for child in children)


def test_environment_and_directory_are_handed_on(tmp_path):
    child, _ = family(tmp_path, "mild", environment={"CCS_TEST_WORD": "word"}, directory=tmp_path)
    assert child.tail().split()[2:] == ["word", str(tmp_path)]
    stop_all([child])


def test_a_child_that_ends_by_itself_is_noticed(tmp_path):
    child = Child("short", [sys.executable, "-c", "print('a\\nb\\nc')"], log=tmp_path / "log")
    wait_until(lambda: not child.alive)
    assert child.tail(2) == "b\nc"
    stop_all([child])


def test_a_command_that_does_not_exist_is_a_child_that_has_ended(tmp_path):
    child = Child("absent", [str(tmp_path / "absent")], log=tmp_path / "log")
    assert child.pid == 0
    wait_until(lambda: not child.alive)
    assert "absent" in child.tail()
    stop_all([child])


def test_an_interrupt_of_the_terminal_does_not_reach_a_child(tmp_path):
    child, pids = family(tmp_path, "mild")
    assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids)
    stop_all([child], limit_s=0.5)


def test_a_killed_parent_leaves_no_child(tmp_path):
    with running([sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "log")]) as parent:
        pid = int(parent.stdout.readline())
        try:
            assert process_runs(pid)
            parent.kill()
            wait_until(lambda: not process_runs(pid), message="the child ends with its parent")
        finally:
            if process_runs(pid):
                os.kill(pid, signal.SIGKILL)
