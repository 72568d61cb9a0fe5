"""How long a waiting job will still wait, by the counts that the scripts keep; the Python side of predicted_wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["predicted_wait_us"]


def predicted_wait_us(load: Mapping[str, int], size: int, workers: int, *, ahead: float = 1.0) -> float:
    """Microseconds until a job is started.

    Args:
        load: the hash of counts: ``h<b>`` the expected device time of what waits, by the power of two of its score
            beside the base; ``run`` that of what runs.
        size: the job's score beside its base.
        workers: live workers; without any, as if there were one.
        ahead: share of the jobs of its queue that come before it, 0 to 1, where it waits there already.
    """
    own = _power(size)
    waiting = {int(name[1:]): us for name, us in load.items() if name[0] == "h" and name[1:].isdecimal()}
    before = min(
        sum(us for power, us in waiting.items() if power <= own), ahead * sum(us for us in waiting.values())
    )
    return max(0.0, before + load.get("run", 0) / 2) / max(1, workers)


def _power(size: int) -> int:
    return max(0, size.bit_length() - 1)
