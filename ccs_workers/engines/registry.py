"""What makes the engine of which name in the model file; it is imported only when its model is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import Emit, Engine
    from ccs_workers.models.spec import ModelSpec

ENGINES: Final = {
    "simulated": "ccs_workers.engines.simulated:make_engine",
    "text": "ccs_workers.engines.text:TextEngine",
    "whisper": "ccs_workers.engines.whisper:WhisperEngine",
    "vision": "ccs_workers.engines.vision:VisionEngine",
}


class EngineMaker(Protocol):
    """An engine's class, or a function that chooses one by the model's options."""

    def __call__(self, spec: ModelSpec, emit: Emit) -> Engine: ...


def engine_maker(name: str) -> EngineMaker:
    """Import what makes the engines of a name.

    Raises:
        ConfigurationError: no such engine, or its libraries aren't installed.
    """
    path = ENGINES.get(name)
    if path is None:
        raise ConfigurationError(f"unknown engine {name!r}; known: {', '.join(sorted(ENGINES))}")
    module, _, attribute = path.partition(":")
    try:
        return cast("EngineMaker", getattr(import_module(module), attribute))
    except ImportError as error:
        raise ConfigurationError(
            f"engine {name!r} needs a library that isn't installed ({error.name}); "
            "install it with: pip install 'ccs-workers[worker]'"
        ) from error
