"""What earlier attempts of a job have logged, as the next engine needs it; token ids stay off the wire of events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from ccs_broker import topology
from ccs_workers.engines.protocol import Resume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis import Redis

_PAGE: Final = 1000


def read_history(redis: Redis, job_id: str) -> tuple[Resume, float]:
    """Fold a job's log into text, token ids and progress, and the device time of attempts that were handed back.

    Errors of the server pass through.
    """
    texts: list[str] = []
    token_ids: list[int] = []
    progress: list[Mapping[str, Any]] = []
    device_s = 0.0
    after = "-"
    while True:
        page = cast(
            "list[tuple[bytes, dict[bytes, bytes]]]",
            redis.xrange(topology.LOG + job_id, min=after, count=_PAGE),
        )
        for _, fields in page:
            kind = fields.get(b"k")
            if kind == b"delta":
                texts.append(fields.get(b"x", b"").decode())
                token_ids += map(int, filter(None, fields.get(b"i", b"").decode().split(",")))
            elif kind == b"progress":
                progress.append(json.loads(fields.get(b"d") or b"{}"))
            elif kind == b"preempted":
                device_s += json.loads(fields.get(b"d") or b"{}").get("device_s", 0.0)
        if len(page) < _PAGE:
            resume = Resume(text="".join(texts), token_ids=tuple(token_ids), progress=tuple(progress))
            return resume, device_s
        after = f"({page[-1][0].decode()}"
