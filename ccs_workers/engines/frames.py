"""The pipe between worker and engine process: JSON frames, media as raw bytes behind them, never pickle.

A frame is one JSON object; where it names ``blobs`` (a list of lengths), that many raw messages follow it. The
verbs towards the engine are ``start``, ``grant``, ``cancel`` and ``close``; towards the worker ``ready``, ``fault``,
``out`` and ``beat``, the sign of life, which tells the process's memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract import Sampling, Usage
from ccs_workers.engines.protocol import (
    Delta,
    Done,
    EngineInfo,
    EngineJob,
    EngineOutput,
    Failed,
    MemoryUse,
    Progress,
    Resume,
    Sized,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from multiprocessing.connection import Connection

Frame = dict[str, Any]

#: Seconds between two signs of life of an engine process, and of silence after which it counts as frozen.
BEAT_EVERY_S: Final = 2.0
FROZEN_AFTER_S: Final = 20.0


def send(pipe: Connection, frame: Frame, blobs: Sequence[bytes] = ()) -> None:
    """Write one frame and its blobs. The caller holds the pipe's write lock.

    Raises:
        OSError: the other side is gone.
    """
    if blobs:
        frame = {**frame, "blobs": [len(blob) for blob in blobs]}
    pipe.send_bytes(json.dumps(frame, separators=(",", ":")).encode())
    for blob in blobs:
        pipe.send_bytes(blob)


def receive(pipe: Connection) -> tuple[Frame, list[bytes]]:
    """Read one frame and its blobs.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    frame: Frame = json.loads(pipe.recv_bytes())
    return frame, [pipe.recv_bytes() for _ in frame.get("blobs", ())]


def start_frame(job: EngineJob) -> tuple[Frame, list[bytes]]:
    """A job on its way to the engine."""
    frame: Frame = {
        "do": "start",
        "key": job.key,
        "prompt": job.prompt,
        "sampling": job.sampling.model_dump(mode="json"),
        "seed": job.seed,
        "images": len(job.images),
        "score": job.score,
        "floor": job.floor,
        "memory": job.memory_bytes,
    }
    if job.resume is not None:
        frame["resume"] = [
            job.resume.text,
            job.resume.token_ids,
            [dict(data) for data in job.resume.progress],
        ]
    return frame, [*job.images, *job.audio]


def job_of(frame: Frame, blobs: Sequence[bytes]) -> EngineJob:
    """Inverse of :func:`start_frame`."""
    images, resume = frame["images"], frame.get("resume")
    return EngineJob(
        key=frame["key"],
        prompt=frame["prompt"],
        sampling=Sampling.model_validate(frame["sampling"]),
        seed=frame["seed"],
        images=tuple(blobs[:images]),
        audio=tuple(blobs[images:]),
        resume=Resume(text=resume[0], token_ids=tuple(resume[1]), progress=tuple(resume[2]))
        if resume
        else None,
        score=frame["score"],
        floor=frame["floor"],
        memory_bytes=frame["memory"],
    )


def grant_frame(key: str, memory_bytes: int) -> Frame:
    """A job may use so many bytes from now on."""
    return {"do": "grant", "key": key, "memory": memory_bytes}


def beat_frame(use: MemoryUse) -> Frame:
    """A sign of life with the process's memory."""
    return {
        "do": "beat",
        "memory": {
            "used": use.used_bytes,
            "peak": use.peak_bytes,
            "allocated": use.allocated_bytes,
            "reserved": use.reserved_bytes,
        },
    }


def memory_of(frame: Frame) -> MemoryUse | None:
    """The memory that a beat tells; None where the process couldn't find out."""
    told = frame.get("memory")
    return told and MemoryUse(**{f"{name}_bytes": size for name, size in told.items()})


def out_frame(outputs: Iterable[tuple[str, EngineOutput]]) -> Frame:
    """Outputs of one step, of any number of jobs."""
    return {"do": "out", "out": [[key, *_encode(output)] for key, output in outputs]}


def outputs_of(frame: Frame) -> list[tuple[str, EngineOutput]]:
    """Inverse of :func:`out_frame`."""
    return [(key, _decode(kind, value)) for key, kind, value in frame["out"]]


def _encode(output: EngineOutput) -> tuple[str, Any]:
    match output:
        case Sized():
            return "m", [output.need_bytes, output.step_bytes]
        case Delta():
            return "d", [output.text, output.token_ids]
        case Progress():
            return "p", output.data
        case Done():
            usage = output.usage.model_dump(exclude_defaults=True)
            return "e", [output.finish_reason, usage, output.data, output.first_device_s]
        case Failed():
            return "f", [output.code, output.message]


def _decode(kind: str, value: Any) -> EngineOutput:
    match kind:
        case "m":
            return Sized(need_bytes=value[0], step_bytes=value[1])
        case "d":
            return Delta(text=value[0], token_ids=tuple(value[1]))
        case "p":
            return Progress(data=value)
        case "e":
            return Done(
                finish_reason=value[0],
                usage=Usage.model_validate(value[1]),
                data=value[2],
                first_device_s=value[3],
            )
        case "f":
            return Failed(code=value[0], message=value[1])
        case _:
            raise ValueError(f"unknown output {kind!r}")


def info_frame(info: EngineInfo) -> Frame:
    """The engine is loaded."""
    return {
        "do": "ready",
        "alias": info.alias,
        "modality": info.modality,
        "device": info.device,
        "dtype": info.dtype,
        "weights_bytes": info.weights_bytes,
        "load_s": info.load_s,
        "context_tokens": info.context_tokens,
        "takes_prompt": info.takes_prompt,
        "fixed_bytes": info.fixed_bytes,
        "pool_bytes": info.pool_bytes,
        "need": info.need,
    }


def info_of(frame: Frame) -> EngineInfo:
    """Inverse of :func:`info_frame`."""
    told = {name: value for name, value in frame.items() if name != "do"}
    return EngineInfo(**{**told, "need": tuple(told["need"])})
