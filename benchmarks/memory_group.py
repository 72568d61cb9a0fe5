"""A memory cgroup for one benchmark: a limit past which the kernel kills, and what it saw."""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT: Final = Path("/sys/fs/cgroup")
_LEAVE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """Version 1 or 2, whatever this machine has."""

    path: Path
    is_v2: bool

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, so that it and all its children run in the group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    @property
    def kills(self) -> int:
        """Processes that the kernel has killed for memory."""
        file = self.path / ("memory.events" if self.is_v2 else "memory.oom_control")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    @property
    def used_bytes(self) -> int:
        """Usage without the file cache that the kernel gives back."""
        name, cache = (
            ("memory.current", "inactive_file")
            if self.is_v2
            else ("memory.usage_in_bytes", "total_inactive_file")
        )
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int((self.path / name).read_text()) - int(stat.get(cache, 0))


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A group with this limit, removed at the end.

    Raises:
        OSError: this machine lets us make none; the benchmark needs root, and a memory controller.
    """
    is_v2 = (_ROOT / "cgroup.controllers").exists()
    controllers = "" if is_v2 else "memory"
    own = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.split(":", 2)[1] == controllers
    )
    path = _ROOT / controllers / own.strip("/") / f"ccs-bench-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        (path / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        yield MemoryGroup(path=path, is_v2=is_v2)
    finally:
        deadline = time.monotonic() + _LEAVE_S
        while (path / "cgroup.procs").read_text().split() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.rmdir(path)
