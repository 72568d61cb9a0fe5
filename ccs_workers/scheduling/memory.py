"""Memory that jobs need, as far as models state it; so far only simulated ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ccs_broker import topology
from ccs_broker.transport import Memory

if TYPE_CHECKING:
    from ccs_workers.models.modelfile import ModelFile
    from ccs_workers.models.spec import ModelSpec

__all__ = ["memory_of"]

#: A token is a word there: a character and the space before it at the least.
_TOKENS_PER_CHAR: Final = 0.5


def memory_of(models: ModelFile) -> Memory | None:
    """The memory that a worker of these models has for jobs; None if no model states any.

    All models are on one device: the largest ``memory_bytes`` is its, less the weights of every engine.
    """
    hosts = {spec.serving.alias: spec.serving for spec in models.specs}
    total_bytes = max(_stated(spec, "memory_bytes") for spec in hosts.values())
    if not total_bytes:
        return None
    weights_bytes = sum(_stated(spec, "weights_bytes") for spec in hosts.values())
    need = {}
    for spec in models.specs:
        each, token = _stated(spec, "bytes_per_job"), _stated(spec, "bytes_per_token")
        coefficients = (each + token * _TOKENS_PER_CHAR, token * _TOKENS_PER_CHAR, float(token), 0.0, 0.0)
        queue = topology.queue_of(spec.modality)
        need[queue, spec.alias] = coefficients
        if models.default_for(spec.modality) == spec:
            need[queue, ""] = coefficients
    return Memory(total_bytes=max(0, total_bytes - weights_bytes), need=need)


def _stated(spec: ModelSpec, name: str) -> int:
    value = spec.options.get(name, 0)
    return value if isinstance(value, int) else 0
