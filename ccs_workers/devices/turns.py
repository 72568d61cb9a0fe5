"""One worker at a time reads a device's free memory and loads: a lock that the kernel frees if its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import stat
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_broker.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccs_workers.devices.device import Device

__all__ = ["start_up"]

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.05
_LOG_EVERY_S: Final = 10.0


@contextmanager
def start_up(device: Device, *, timeout_s: float, folder: Path | None = None) -> Iterator[None]:
    """Hold the device's turn to load while the block runs.

    Turns are taken between all processes of this user that see the same folder, whatever their worker is.

    Args:
        device: the one to load on; its UUID names the lock.
        timeout_s: seconds to wait for whoever loads there now.
        folder: where the lock's file is; the temporary folder if not given.

    Raises:
        SetupError: the turn didn't come in time (the message says who has it), or the file can't be made.
    """
    path = _path(device, folder or Path(tempfile.gettempdir()))
    file = _open(path)
    try:
        _wait(file, path, device, timeout_s)
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            # Before the lock goes: the next holder's name must not be erased. A full disk must not keep it.
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
    finally:
        # Closing frees the lock. The file stays: two processes could otherwise lock two files of one name.
        os.close(file)


def _path(device: Device, folder: Path) -> Path:
    return folder / f"ccs-start-up-{os.getuid()}-{re.sub(r'[^A-Za-z0-9.-]', '_', device.uuid)}.lock"


def _open(path: Path) -> int:
    try:
        # Not inherited, or an engine process would go on holding the lock of a worker that died.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path, error.strerror or "it can't be opened") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(file)
        raise _unusable(path, "it isn't a file of ours")
    return file


def _unusable(path: Path, why: str) -> SetupError:
    return SetupError(
        f"{path} can't serve as the lock for loading on a device: {why}; set TMPDIR to another folder"
    )


def _wait(file: int, path: Path, device: Device, timeout_s: float) -> None:
    began = time.monotonic()
    told = began - _LOG_EVERY_S
    while not _try_lock(file, path):
        now = time.monotonic()
        if now - began >= timeout_s:
            raise SetupError(
                f"waited {timeout_s:g} s for {_holder(file)}, which is loading on {device.uuid}; if it hangs, end it"
            )
        if now - told >= _LOG_EVERY_S:
            told = now
            logger.info("waiting for %s, which is loading on %s", _holder(file), device.uuid)
        time.sleep(min(_PAUSE_S, max(0.0, began + timeout_s - now)))


def _try_lock(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(path, error.strerror or "it can't be locked") from None
    return True


def _holder(file: int) -> str:
    text = os.pread(file, 200, 0).decode(errors="replace").strip()
    return text if re.fullmatch(r"process \d+ on [\w.-]+", text, re.ASCII) else "another process"
