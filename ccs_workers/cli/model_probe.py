"""Loads a declared model in a process of its own and runs one small job on it, for `ccs models check --deep`."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Final

from ccs_broker.contract import Modality, Sampling
from ccs_broker.errors import CcsError
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed
from ccs_workers.executor.handle import EngineHandle
from ccs_workers.models.check import ProbeResult
from ccs_workers.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccs_workers.engines.protocol import EngineOutput
    from ccs_workers.models.spec import ModelSpec

__all__ = ["probe"]

#: Seconds for the job, loading not counted: much for a large model on a CPU.
_JOB_LIMIT_S: Final = 300.0
_KEY: Final = "probe"


def probe(spec: ModelSpec) -> ProbeResult:
    """Load the model, run the job of its modality, and end the process."""
    outputs: queue.SimpleQueue[EngineOutput | None] = queue.SimpleQueue()

    def take(news: Sequence[tuple[str, EngineOutput]]) -> None:
        for _, output in news:
            outputs.put(output)

    handle = EngineHandle(spec, take, lambda _: outputs.put(None))
    try:
        info = handle.start()
        handle.submit(_job(spec.modality))
        result = _verdict(outputs)
    except CcsError as error:
        return ProbeResult(ok=False, detail=error.message)
    finally:
        handle.close()
    if not result.ok:
        return result
    return ProbeResult(ok=True, detail=f"loaded in {info.load_s:.1f} s on {info.device}, {result.detail}")


def _job(modality: Modality) -> EngineJob:
    page, clip = (sample_path(name).read_bytes() for name in ("page.png", "clip.wav"))
    with_page = modality in {Modality.VISION, Modality.FUSION}
    return EngineJob(
        key=_KEY,
        prompt="" if modality is Modality.AUDIO else "What is the capital of France?",
        sampling=Sampling(max_new_tokens=8),
        seed=0,
        images=(page,) if with_page else (),
        audio=(clip,) if modality is Modality.AUDIO else (),
    )


def _verdict(outputs: queue.SimpleQueue[EngineOutput | None]) -> ProbeResult:
    """How the job ended; an engine that says nothing at all, or no text, is no good."""
    began = time.monotonic()
    text = ""
    while (left_s := began + _JOB_LIMIT_S - time.monotonic()) > 0:
        try:
            output = outputs.get(timeout=left_s)
        except queue.Empty:
            break
        match output:
            case None:
                return ProbeResult(ok=False, detail="the engine's process ended under the job")
            case Failed():
                return ProbeResult(ok=False, detail=f"{output.code}: {output.message}")
            case Done():
                took = f"answered in {time.monotonic() - began:.1f} s"
                return ProbeResult(ok=bool(text), detail=took if text else f"{took} without a text")
            case Delta():
                text += output.text
    return ProbeResult(ok=False, detail=f"no answer within {_JOB_LIMIT_S:.0f} s")
