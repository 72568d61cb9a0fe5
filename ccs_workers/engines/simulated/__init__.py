"""A stand-in for a model, for scheduling, scale and chaos: it needs no torch and is never presented as one."""

from ccs_workers.engines.simulated.choose import make_engine
from ccs_workers.engines.simulated.engine import SimulatedEngine
from ccs_workers.engines.simulated.reference import ReferenceEngine
from ccs_workers.engines.simulated.words import digest_of, text_of, word_at

__all__ = ["ReferenceEngine", "SimulatedEngine", "digest_of", "make_engine", "text_of", "word_at"]
