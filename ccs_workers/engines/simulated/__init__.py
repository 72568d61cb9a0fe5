"""A stand-in for a model, for scheduling, scale and chaos: it needs no torch and is never presented as one."""

from ccs_workers.engines.simulated.engine import SimulatedEngine
from ccs_workers.engines.simulated.words import digest_of, text_of, word_at

__all__ = ["SimulatedEngine", "digest_of", "text_of", "word_at"]
