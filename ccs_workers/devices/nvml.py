"""NVML behind one call that answers or says why it can't: no driver, no library, a lost GPU, a wrong package."""

from __future__ import annotations

import atexit
import importlib
import logging
import threading
from importlib import metadata
from typing import Any, Final

__all__ = ["NVML", "Nvml", "NvmlError"]

logger = logging.getLogger(__name__)

#: Distributions besides nvidia-ml-py that install a module pynvml; whichever came last has overwritten the other.
_RIVALS: Final = ("pynvml", "nvidia-ml-py3")
#: What a module of that name raises that isn't NVIDIA's: names that are missing, other arguments, other structures.
_FOREIGN: Final = (AttributeError, TypeError, ValueError, OSError)


class NvmlError(Exception):
    """NVML doesn't answer; the text is the reason. Never leaves this package."""


class Nvml:
    """The library, loaded and initialized by the first question and shut down once, when the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._errors: tuple[type[Exception], ...] = _FOREIGN

    def start(self) -> None:
        """Load and initialize the library unless that was done; after a failure, the next call tries again.

        Raises:
            NvmlError: it can't be had.
        """
        with self._lock:
            if self._module is not None:
                return
            module = _import()
            named = (getattr(module, name, None) for name in ("NVMLError", "NVMLLibraryMismatchError"))
            self._errors = (
                *_FOREIGN,
                *(each for each in named if isinstance(each, type) and issubclass(each, Exception)),
            )
            self._run(module, "nvmlInit")
            self._module = module
            atexit.register(self._stop)

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of pynvml.

        Raises:
            NvmlError: it failed, or isn't there.
        """
        self.start()
        return self._run(self._module, name, *args)

    def constant(self, name: str) -> Any:
        """A number that pynvml defines.

        Raises:
            NvmlError: it doesn't.
        """
        self.start()
        value = getattr(self._module, name, None)
        if value is None:
            raise NvmlError(f"NVML: this pynvml has no {name}")
        return value

    def first(self, names: tuple[str, ...], *args: Any) -> Any:
        """Call the first of these functions that works; drivers of different age have different ones.

        Raises:
            NvmlError: none did; the reason is that of the first.
        """
        refusals = []
        for name in names:
            try:
                return self.call(name, *args)
            except NvmlError as error:
                refusals.append(error)
        raise refusals[0]

    def _run(self, module: Any, name: str, *args: Any) -> Any:
        try:
            return getattr(module, name)(*args)
        except self._errors as error:
            text = str(error) or type(error).__name__
            raise NvmlError(f"NVML: {name}: {text.rstrip('.')}") from None

    def _stop(self) -> None:
        try:
            self._run(self._module, "nvmlShutdown")
        except NvmlError as error:
            logger.debug("%s", error)


def _import() -> Any:
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlError(f"NVML: nvidia-ml-py can't be imported: {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever else goes by this name may raise what it likes
        raise NvmlError(
            f"NVML: the module pynvml isn't that of nvidia-ml-py: {type(error).__name__}"
        ) from None
    rivals = [name for name in _RIVALS if _installed(name)]
    if rivals:
        logger.warning(
            "%s installs a module pynvml as nvidia-ml-py does; if GPU memory is unknown, uninstall both and install "
            "nvidia-ml-py again",
            " and ".join(rivals),
        )
    return module


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


#: That of this process; nothing is loaded before the first question.
NVML: Final = Nvml()
