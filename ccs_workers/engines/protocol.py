"""The engine protocol: what the engine process asks of a model, and what the model answers.

An engine is built from its model spec and an ``emit`` callback, loads once, and then takes jobs without blocking.
For each started job it emits any number of ``Delta`` and ``Progress`` outputs and then exactly one ``Done`` or
``Failed``; nothing after that. ``Sized`` may come before all of them, once: what memory the job needs, exactly. While
that is more than it was granted, the engine holds it until ``grant``. A job with ``resume`` is continued: its outputs
are those that an uninterrupted run would have emitted behind what ``resume`` holds, and its usage counts the whole
job. ``emit`` may be called from any thread and never blocks for long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ccs_broker.contract import Sampling, Usage
    from ccs_workers.models.spec import ModelSpec

#: Why a job's text ended: at the model's end token, at a stop string, at its limit, or because it was told to.
FinishReason = Literal["end", "stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """What earlier attempts of a job have emitted. The engine goes on behind it and emits none of it again."""

    #: All deltas joined.
    text: str
    #: Ids of all tokens decoded, also of those whose text was still held back.
    token_ids: tuple[int, ...] = ()
    #: Data of all progress outputs, in order: windows and pictures that are done.
    progress: tuple[Mapping[str, JsonValue], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """One attempt of a job as the engine sees it: no ids of tenants, no deadlines, only work."""

    #: Unique while the engine lives: job id and attempt.
    key: str
    #: All text parts joined; an instruction for vision and audio, may be empty there.
    prompt: str
    sampling: Sampling
    #: Always a number: drawn by the worker where the caller gave none.
    seed: int
    #: Encoded pictures, in order.
    images: tuple[bytes, ...] = ()
    #: Encoded sounds, in order.
    audio: tuple[bytes, ...] = ()
    #: Set where an earlier attempt had begun to answer.
    resume: Resume | None = None
    #: How urgent it is, lower first; an engine that can't start all its jobs at once may go by it.
    score: float = 0.0
    #: It was taken in order of arrival, so that nothing starves: its share isn't to be given to more urgent jobs.
    floor: bool = False
    #: Memory granted to the job; None: memory is no bound for it.
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What a job holds at most beside the engine's fixed memory, as far as its content gives away."""

    need_bytes: int
    #: Of that, what is there within one of its steps only, of which the engine takes one at a time for all jobs.
    step_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of the job's text, whole characters only; ``token_ids`` are those decoded since the last output."""

    text: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the job is: ``{"window": 2, "windows": 4}``, ``{"image": 1, "images": 3, "labels": [...]}``."""

    data: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The job's end; its text is its deltas joined."""

    finish_reason: FinishReason
    #: Of the whole job; but ``device_s``, if the engine knows it, is that of this attempt.
    usage: Usage
    #: Seconds of the device until the attempt's first output, if the engine knows them.
    first_device_s: float | None = None
    #: What else was found: labels, lines, ``no_speech``.
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job's end by an error of the tree: its code and a message that holds nothing of the prompt."""

    code: str
    message: str


#: Device of engines that only say what they hold: what their process uses is something else.
SIMULATED_DEVICE: Final = "simulated"

EngineOutput = Sized | Delta | Progress | Done | Failed
#: ``emit(key, output)``.
Emit = Callable[[str, EngineOutput], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded engine tells of itself."""

    alias: str
    modality: str
    device: str
    dtype: str
    weights_bytes: int
    load_s: float
    #: Most tokens of prompt and answer together; None where that has no meaning.
    context_tokens: int | None = None
    #: Whether a job's prompt has any influence on the model's answer.
    takes_prompt: bool = True
    #: Measured peak of the whole process after its warm-up, whatever jobs it has: libraries, weights, activations of
    #: its largest step, and ``pool_bytes``.
    fixed_bytes: int = 0
    #: The part of it that is divided among jobs (a text engine's keys and values); 0: what jobs hold comes on top.
    pool_bytes: int = 0
    #: A job's memory as a linear estimate in bytes: of 1, characters of the prompt, new tokens, images, media bytes.
    need: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of an engine process on its device: this moment's, and the highest since the last time it told."""

    used_bytes: int
    peak_bytes: int
    #: What the device's allocator has given out, and what it keeps; on a CPU both are ``used_bytes``.
    allocated_bytes: int
    reserved_bytes: int


class Engine(Protocol):
    """A model behind the protocol. ``EngineClass(spec, emit)`` builds one; building loads nothing."""

    def __init__(self, spec: ModelSpec, emit: Emit) -> None: ...

    def load(self) -> EngineInfo:
        """Load the model; called once, before any job.

        Raises:
            ConfigurationError: the folder or an option is wrong; the message says what to do.
        """

    def start(self, job: EngineJob) -> None:
        """Take a job and return at once; its outputs come through ``emit``.

        Raises:
            CcsError: the job can't run (too long, not decodable); the model hasn't been touched for it.
        """

    def cancel(self, key: str) -> None:
        """Stop a job at its next step; it ends with ``Done(finish_reason="cancelled")``. An unknown key is fine."""

    def grant(self, key: str, memory_bytes: int) -> None:
        """Let a job use so many bytes from now on; one that was held for less goes on. An unknown key is fine."""

    def close(self) -> None:
        """Stop working; jobs that still run end without further output."""
