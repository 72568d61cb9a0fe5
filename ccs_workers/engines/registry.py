"""Which class serves which engine name of the model file; a class is imported only when its model is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import Engine

ENGINES: Final = {
    "simulated": "ccs_workers.engines.simulated:SimulatedEngine",
    "text": "ccs_workers.engines.text:TextEngine",
    "whisper": "ccs_workers.engines.whisper:WhisperEngine",
    "vision": "ccs_workers.engines.vision:VisionEngine",
}


def engine_class(name: str) -> type[Engine]:
    """Import the class behind an engine name.

    Raises:
        ConfigurationError: no such engine, or its libraries aren't installed.
    """
    path = ENGINES.get(name)
    if path is None:
        raise ConfigurationError(f"unknown engine {name!r}; known: {', '.join(sorted(ENGINES))}")
    module, _, attribute = path.partition(":")
    try:
        return cast("type[Engine]", getattr(import_module(module), attribute))
    except ImportError as error:
        raise ConfigurationError(
            f"engine {name!r} needs a library that isn't installed ({error.name}); "
            "install it with: pip install 'ccs-workers[worker]'"
        ) from error
