"""Settings of the worker, parsed once; no other module of the package reads the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import Modality
from ccs_broker.errors import ConfigurationError
from ccs_broker.settings import LedgerSettings, ledger_settings, require_url

if TYPE_CHECKING:
    from collections.abc import Mapping

MODELS_VARIABLE: Final = "CCS_MODELS"
MODALITIES_VARIABLE: Final = "CCS_MODALITIES"
SLOTS_VARIABLE: Final = "CCS_SLOTS"
LEASE_VARIABLE: Final = "CCS_LEASE_S"
SWEEP_VARIABLE: Final = "CCS_SWEEP_S"
DRAIN_VARIABLE: Final = "CCS_DRAIN_S"
STALL_VARIABLE: Final = "CCS_STALL_S"
EVICTION_VARIABLE: Final = "CCS_ALLOW_EVICTION"
ALLOCATION_VARIABLE: Final = "CCS_ALLOCATION"
FLOORS_VARIABLE: Final = "CCS_FLOORS"
MEMORY_VARIABLE: Final = "CCS_MEMORY"

ALLOCATIONS: Final = ("dynamic", "static")
DEFAULT_SLOTS: Final = 16
MAX_SLOTS: Final = 4096
DEFAULT_STALL_S: Final = 30.0
DEFAULT_UNLOAD_IDLE_S: Final = 600.0
_PARTS_EXAMPLE: Final = "text=8,vision=4"
_NUMBER: Final = re.compile(r"[+-]?[\d.]+")
_SHOWN_CHARS: Final = 40
_WHOLE_PERCENT: Final = 100.0
_MOST_MEMORY_BYTES: Final = 2**50
#: Bounds of every time that can be set, in seconds.
SHORTEST_S: Final = 0.1
LONGEST_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """How many jobs run at once, and how many of each modality where that is said; as text what it was read from."""

    total: int
    parts: Mapping[Modality, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return shown_parts(self.parts) or str(self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWish:
    """How much of a device's memory a worker may use."""

    #: None: the share counts.
    limit_bytes: int | None = None
    share: float = 0.9

    def __str__(self) -> str:
        return f"{self.share:.0%}" if self.limit_bytes is None else f"{self.limit_bytes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is told; the same whether ``ccs worker`` or Celery's own command starts it."""

    url: str
    #: None: only Celery's tools (Flower, inspect) can run on this app, no worker.
    model_file: Path | None = None
    #: Empty: every modality the model file serves.
    modalities: tuple[Modality, ...] = ()
    #: Jobs that run at once.
    slots: int = DEFAULT_SLOTS
    #: Slots of each modality, under static allocation; empty: equal parts.
    slot_parts: Mapping[Modality, int] = field(default_factory=dict)
    #: Slots of a modality that others don't take, under dynamic allocation.
    floors: Mapping[Modality, int] = field(default_factory=dict)
    #: Overrides ``device = "auto"`` of the model file; "auto" leaves the choice to the engine.
    device: str = "auto"
    #: Memory of the device for engines and jobs together: so many bytes, or a share of what it has.
    memory: MemoryWish = field(default_factory=lambda: MemoryWish())
    #: Seconds after which a model that isn't a default is unloaded if nobody uses it.
    unload_idle_s: float = DEFAULT_UNLOAD_IDLE_S
    allocation: str = "dynamic"
    #: None: a name that is unique by construction.
    name: str | None = None
    #: Seconds that running jobs have to end at shutdown, before they are handed back to be continued elsewhere.
    drain_s: float = 0.0
    #: Seconds between two reports of a living worker, and after which a silent one counts as gone.
    report_every_s: float = 2.0
    report_ttl_s: float = 10.0
    #: Seconds for which jobs may wait beside free slots before the worker calls itself stalled.
    stall_s: float = DEFAULT_STALL_S
    #: Start although the server may evict jobs and results.
    allow_eviction: bool = False
    #: Where the health endpoint listens; no port: nowhere.
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    ledger: LedgerSettings = field(default_factory=LedgerSettings)


def parse_modalities(text: str) -> tuple[Modality, ...]:
    """Read ``text,vision,audio``.

    Raises:
        ConfigurationError: a word isn't a modality.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Modality)]
    if unknown or not words:
        known = ", ".join(Modality)
        raise ConfigurationError(f"modalities must be some of {known}, separated by commas; got {text!r}")
    return tuple(dict.fromkeys(Modality(word) for word in words))


def parse_slots(text: str) -> SlotPlan:
    """Read a number of slots (``16``) or those of each modality (``text=8,vision=4``).

    Raises:
        ConfigurationError: it isn't a whole number from 1 to ``MAX_SLOTS``, nor are its parts.
    """
    # A sign or a point is a number gone wrong; anything else was meant as a list.
    if _NUMBER.fullmatch(text.strip()):
        return SlotPlan(total=_slots(text.strip(), "slots"))
    parts = parse_parts(text, "slots", example=f"{DEFAULT_SLOTS}, or {_PARTS_EXAMPLE}")
    return SlotPlan(total=sum(parts.values()), parts=parts)


def parse_parts(text: str, name: str, *, example: str = _PARTS_EXAMPLE) -> dict[Modality, int]:
    """Read slots of some modalities, such as ``text=8,vision=4``; ``example`` is what the error shows.

    Raises:
        ConfigurationError: it isn't of this form, or adds up to more than ``MAX_SLOTS``; it begins with ``name``.
    """
    items = [item for word in text.split(",") if (item := word.strip())]
    pairs = [tuple(piece.strip() for piece in item.partition("=")) for item in items]
    words = [word for word, _, _ in pairs]
    right = all(word in set(Modality) and _NUMBER.fullmatch(number) for word, _, number in pairs)
    if not pairs or not right or len(set(words)) < len(words):
        raise ConfigurationError(
            f"{name} are given once for each modality ({', '.join(Modality)}), such as {example}; "
            f"got {text[:_SHOWN_CHARS]!r}"
        )
    parts = {Modality(word): _slots(number, name) for word, _, number in pairs}
    if sum(parts.values()) > MAX_SLOTS:
        raise ConfigurationError(f"{name} must add up to a number from 1 to {MAX_SLOTS}; got {text!r}")
    return parts


def parse_memory(text: str) -> MemoryWish:
    """Read an amount of memory (``8GiB``, ``500MB``, plain bytes) or a share of the device's (``80%``).

    Raises:
        ConfigurationError: it is neither, or the share isn't above 0 and at most 100%.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[kMGT]?i?B?)", text.strip(), re.ASCII)
    number, unit = (float(found[1]), found[2]) if found else (0.0, "")
    if found and unit == "%" and 0 < number <= _WHOLE_PERCENT:
        return MemoryWish(share=number / _WHOLE_PERCENT)
    if found and unit != "%" and 1 <= number * _unit_bytes(unit) <= _MOST_MEMORY_BYTES:
        return MemoryWish(limit_bytes=int(number * _unit_bytes(unit)))
    raise ConfigurationError(f"memory must be an amount such as 8GiB or a share such as 80%, not {text!r}")


def _unit_bytes(unit: str) -> int:
    base = 1024 if "i" in unit else 1000
    return int(base ** (" kMGT".index(unit[0]) if unit and unit[0] in "kMGT" else 0))


def shown_parts(parts: Mapping[Modality, int]) -> str:
    """The text that :func:`parse_parts` reads as these."""
    return ",".join(f"{modality.value}={slots}" for modality, slots in parts.items())


def _slots(text: str, name: str) -> int:
    # Python refuses to read numbers of thousands of digits.
    if (
        not (text.isascii() and text.isdecimal())
        or len(text) > _SHOWN_CHARS
        or not 1 <= int(text) <= MAX_SLOTS
    ):
        raise ConfigurationError(
            f"{name} should be a whole number from 1 to {MAX_SLOTS}, not {text[:_SHOWN_CHARS]}"
        )
    return int(text)


def _allocation(text: str) -> str:
    if text not in ALLOCATIONS:
        raise ConfigurationError(f"{ALLOCATION_VARIABLE} must be {' or '.join(ALLOCATIONS)}, not {text!r}")
    return text


def _seconds(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not SHORTEST_S <= value <= LONGEST_S:
        raise ConfigurationError(
            f"{name} must be a number of seconds from {SHORTEST_S} to {LONGEST_S}, not {text!r}"
        )
    return value


def ledger_settings_from_environment(environ: Mapping[str, str] | None = None) -> LedgerSettings:
    """Times of the ledger; set them alike on every worker of a fleet.

    Raises:
        ConfigurationError: a value is wrong.
    """
    found = os.environ if environ is None else environ
    standard = ledger_settings(environ=found)
    return replace(
        standard,
        lease_s=_seconds(found.get(LEASE_VARIABLE) or str(standard.lease_s), LEASE_VARIABLE),
        sweep_s=_seconds(found.get(SWEEP_VARIABLE) or str(standard.sweep_s), SWEEP_VARIABLE),
    )


def allows_eviction(environ: Mapping[str, str] | None = None) -> bool:
    """True if a server that may evict is taken all the same.

    Raises:
        ConfigurationError: the variable is neither 0 nor 1.
    """
    found = (os.environ if environ is None else environ).get(EVICTION_VARIABLE) or "0"
    if found not in {"0", "1"}:
        raise ConfigurationError(f"{EVICTION_VARIABLE} must be 0 or 1, not {found!r}")
    return found == "1"


def stall_seconds(environ: Mapping[str, str] | None = None) -> float:
    """Seconds after which a worker that could claim and doesn't calls itself stalled.

    Raises:
        ConfigurationError: the value is wrong.
    """
    found = (os.environ if environ is None else environ).get(STALL_VARIABLE)
    return _seconds(found, STALL_VARIABLE) if found else DEFAULT_STALL_S


def worker_settings_from_environment(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Settings for ``celery -A ccs_workers ...``, which has no options of ours.

    Raises:
        ConfigurationError: ``CCS_REDIS_URL`` is missing, or a value is wrong.
    """
    found = os.environ if environ is None else environ
    models, modalities = found.get(MODELS_VARIABLE), found.get(MODALITIES_VARIABLE)
    slots, floors = parse_slots(found.get(SLOTS_VARIABLE) or str(DEFAULT_SLOTS)), found.get(FLOORS_VARIABLE)
    return WorkerSettings(
        url=require_url(None, found),
        model_file=Path(models) if models else None,
        modalities=parse_modalities(modalities) if modalities else (),
        slots=slots.total,
        slot_parts=slots.parts,
        floors=parse_parts(floors, FLOORS_VARIABLE) if floors else {},
        allocation=_allocation(found.get(ALLOCATION_VARIABLE) or ALLOCATIONS[0]),
        memory=parse_memory(memory) if (memory := found.get(MEMORY_VARIABLE)) else MemoryWish(),
        drain_s=_seconds(drain, DRAIN_VARIABLE) if (drain := found.get(DRAIN_VARIABLE)) else 0.0,
        stall_s=stall_seconds(found),
        allow_eviction=allows_eviction(found),
        ledger=ledger_settings_from_environment(found),
    )


def engine_environment(threads: int) -> dict[str, str]:
    """Environment of an engine process: ours, but offline and with as many threads as the model may use."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    }


def child_environment(**changes: str) -> dict[str, str]:
    """Environment of a process the command line starts: ours, with these variables set."""
    return {**os.environ, **changes}
