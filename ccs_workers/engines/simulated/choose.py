"""Which simulated engine a model's options ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccs_workers.engines.simulated.engine import SimulatedEngine
from ccs_workers.engines.simulated.reference import ReferenceEngine

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import Emit, Engine
    from ccs_workers.models.spec import ModelSpec

__all__ = ["make_engine"]


def make_engine(spec: ModelSpec, emit: Emit) -> Engine:
    """An engine at a stated pace, or with the option ``reference`` at that of a modelled device."""
    return ReferenceEngine(spec, emit) if "reference" in spec.options else SimulatedEngine(spec, emit)
