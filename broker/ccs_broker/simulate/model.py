"""What a modelled device costs: the coefficients of iteration-level batching, and what a job asks of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract.words import QosClass
from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["REFERENCE", "Demand", "DeviceModel"]

_TARGETS_S: Final = MappingProxyType(
    {QosClass.REALTIME: 1.0, QosClass.INTERACTIVE: 5.0, QosClass.STANDARD: 30.0, QosClass.BATCH: 600.0}
)
_TARGETS: Final = "targets_first_output_s"
#: What a file may hold beside the coefficients: words for its readers.
_REMARKS: Final = frozenset({"about", "capacity", "attainable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one job asks of a device."""

    #: Seconds of encoding: its images and audio.
    encode_s: float
    context_tokens: int
    #: Tokens to generate, at least 1.
    new_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Tokens of cache the job holds from its claim to its end."""
        return self.context_tokens + self.new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """A device that works in iterations, each of which costs the base plus the work in it.

    An iteration encodes at most ``max_encode_s_per_iteration`` seconds, prefills at most
    ``max_prefill_tokens_per_iteration`` tokens, and gives one token to each sequence that decodes. A job's prefill
    begins when its encoding is done, in the same iteration where the budgets allow; the iteration that ends its
    prefill gives its first token.
    """

    iteration_base_s: float = 0.010
    prefill_s_per_token: float = 0.00006
    decode_s_per_sequence: float = 0.00008
    encode_s_per_image: float = 0.008
    encode_s_per_audio_second: float = 0.010
    max_encode_s_per_iteration: float = 0.064
    max_prefill_tokens_per_iteration: int = 2048
    kv_tokens: int = 100_000
    max_sequences: int = 48
    targets_first_output_s: Mapping[QosClass, float] = field(default_factory=lambda: _TARGETS_S)

    @classmethod
    def from_file(cls, path: Path) -> DeviceModel:
        """Read the coefficients from JSON; those left out are the reference device's.

        Raises:
            ConfigurationError: the file can't be read, or a value in it isn't a number above 0.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"device file {path}: {error}") from None
        if not isinstance(values, dict):
            raise ConfigurationError(f"device file {path}: not a JSON object")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known - _REMARKS):
            raise ConfigurationError(f"device file {path}: unknown {', '.join(unknown)}")
        given = {name: values[name] for name in values if name in known}
        if _TARGETS in given:
            given[_TARGETS] = _targets(given[_TARGETS], path)
        for name in given.keys() - {_TARGETS}:
            whole = isinstance(cls.__dataclass_fields__[name].default, int)
            given[name] = _number(given[name], f"{path}: {name}", whole=whole)
        return cls(**given)

    def demand(
        self, *, images: int = 0, audio_s: float = 0.0, context_tokens: int = 0, new_tokens: int = 1
    ) -> Demand:
        """What a job of this size asks of this device."""
        encode_s = images * self.encode_s_per_image + audio_s * self.encode_s_per_audio_second
        return Demand(encode_s=encode_s, context_tokens=context_tokens, new_tokens=max(1, new_tokens))

    def work_s(self, demand: Demand) -> float:
        """Seconds of the job's own work until its first token, without the iterations' base."""
        return demand.encode_s + demand.context_tokens * self.prefill_s_per_token

    def alone_s(self, demand: Demand) -> float:
        """Seconds until its first token with the device to itself."""
        # A remainder of rounding is no iteration of its own.
        encodes = math.ceil(demand.encode_s / self.max_encode_s_per_iteration - 1e-9)
        prefills = -(-demand.context_tokens // self.max_prefill_tokens_per_iteration)
        shared = 1 if encodes and prefills else 0
        return self.work_s(demand) + max(1, encodes + prefills - shared) * self.iteration_base_s

    def cost_s(self, demand: Demand) -> float:
        """Seconds of the job's own work from beginning to end, without the iterations' base."""
        return self.work_s(demand) + demand.new_tokens * self.decode_s_per_sequence


def _number(value: object, name: str, *, whole: bool) -> Any:
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
        raise ConfigurationError(f"device file {name}: must be a {'whole ' * whole}number above 0")
    return value


def _targets(value: object, path: Path) -> Mapping[QosClass, float]:
    if not isinstance(value, dict) or not set(value) <= set(QosClass):
        raise ConfigurationError(f"device file {path}: {_TARGETS} maps {', '.join(QosClass)} to seconds")
    given = {QosClass(name): float(_number(s, f"{path}: {name}", whole=False)) for name, s in value.items()}
    return MappingProxyType({**_TARGETS_S, **given})


#: The device of policy comparisons: invented but fixed, so that policies are compared on one model.
REFERENCE: Final = DeviceModel()
