"""The scheduling policies: which terms a score has, and what else a claim looks at; numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BALANCED", "CLASS", "DEFAULT_POLICY", "EDF", "FIFO", "POLICIES", "Policy"]

_ALL_MEMORY: Final = (1.0, 1.0, 1.0, 1.0, 1.0)


# Compared by identity, so that what is derived from a policy is found quickly: there are only a few.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """How jobs are ordered; :mod:`ccs_broker.priority` turns it into scores."""

    name: str
    #: QoS classes come strictly one after another.
    strict: bool = False
    #: A job's base is its tenant's share of device time; otherwise the broker's clock.
    fair: bool = False
    #: The job whose target comes first goes first.
    by_target: bool = False
    #: Virtual microseconds of base that a microsecond of work weighs, times the class's weight; 0: size is nothing.
    kappa: float = 0.0
    #: Weights of a job's work by class, most urgent first, and once it is relegated: low comes first.
    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    relegated_weight: float = 1.0
    #: Jobs that can't meet their target any more run on leftover capacity.
    relegates: bool = False
    #: Share of device time that batch and relegated jobs get in order of arrival, whatever else waits.
    floor: float = 0.0
    #: Share of the memory that jobs of a class, and relegated ones, may fill.
    headroom: tuple[float, float, float, float, float] = _ALL_MEMORY


BALANCED: Final = Policy(
    name="balanced",
    fair=True,
    kappa=10.0,
    weights=(1.0, 2.0, 8.0, 16.0),
    relegated_weight=32.0,
    relegates=True,
    floor=0.1,
    headroom=(1.0, 0.95, 0.85, 0.75, 0.75),
)
FIFO: Final = Policy(name="fifo")
EDF: Final = Policy(name="edf", by_target=True)
CLASS: Final = Policy(name="class", strict=True)

#: By the name that ``CCS_POLICY`` takes.
POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {policy.name: policy for policy in (BALANCED, FIFO, EDF, CLASS)}
)
DEFAULT_POLICY: Final = BALANCED.name
