"""The options of a simulated model in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from ccs_workers.engines.options import OptionReader

if TYPE_CHECKING:
    from ccs_workers.models.spec import ModelSpec

__all__ = ["DEVICE", "MEMORY", "UNKNOWN", "FaultOptions", "SimulatedOptions"]

MEMORY: Final = "memory"
DEVICE: Final = "device"
UNKNOWN: Final = "unknown"

_MOST_S: Final = 1e6
_MOST_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """What goes wrong, and where: each fault is off unless its word is given, and hits jobs whose prompts contain it.

    If several words are in a prompt, the first of crash, hang and raise counts.
    """

    #: The process is killed (SIGKILL) by the job. Option ``crash_on``, a word.
    crash_on: str | None
    #: Tokens of the whole job, those of earlier attempts counted, after which it is killed: at the step that
    #: follows the last of them; 0: as soon as the job is there. An answer of fewer tokens ends normally. Option
    #: ``crash_after_tokens``, 0.
    crash_after_tokens: int
    #: The job's first step blocks the engine's thread until the engine is closed, and so holds up all jobs.
    #: Option ``hang_on``, a word.
    hang_on: str | None
    #: The job's first step raises. Option ``raise_on``, a word.
    raise_on: str | None
    #: What is raised: "memory" is a ``MemoryError``, "device" a CUDA error, after which every start and every
    #: step of any job raises it again, and "unknown" some ``RuntimeError``. Option ``raise_kind``, "unknown".
    raise_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOptions:
    """What can be said of a simulated model."""

    #: Option ``tokens_per_second``, 0: all at once.
    tokens_per_second: float
    #: Option ``seconds_per_image``, 0.
    seconds_per_image: float
    #: Of each second of sound; a second is 32,000 bytes of its file, as in a 16 kHz 16-bit mono file. Option
    #: ``seconds_per_audio_second``, 0.
    seconds_per_audio_second: float
    #: Option ``load_seconds``, 0.
    load_seconds: float
    #: What the model is said to take when loaded. Option ``weights_bytes``, 0.
    weights_bytes: int
    #: What a job is said to take while it runs. Options ``bytes_per_job``, 0, and ``bytes_per_token``, 0.
    bytes_per_job: int
    bytes_per_token: int
    #: Memory of the device that the model's worker has: what it claims fits in it, and in a job's need each two
    #: characters of its prompt count as a token, as words are that at least. Option ``memory_bytes``, 0: no bound.
    memory_bytes: int
    #: A file like ``service_model.json``: the pace is then that of this device, which works on all jobs together in
    #: iterations, and no option of pace above counts. Option ``reference``, none.
    reference: Path | None
    #: How many seconds of that device pass in one. Option ``time_scale``, 1.
    time_scale: float
    #: Most tokens (words) of prompt and answer together. Option ``context_tokens``, a million.
    context_tokens: int
    #: Most tokens of an answer, whatever the job asks for. Option ``tokens``, a million.
    tokens: int
    faults: FaultOptions

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Read and check the options of a spec.

        Raises:
            ConfigurationError: an unknown name or a value of the wrong kind.
        """
        reader = OptionReader(spec)
        options = cls(
            tokens_per_second=reader.number("tokens_per_second", 0.0, least=0.0, most=1e9),
            seconds_per_image=reader.number("seconds_per_image", 0.0, least=0.0, most=_MOST_S),
            seconds_per_audio_second=reader.number("seconds_per_audio_second", 0.0, least=0.0, most=_MOST_S),
            load_seconds=reader.number("load_seconds", 0.0, least=0.0, most=_MOST_S),
            weights_bytes=reader.whole("weights_bytes", 0, least=0, most=_MOST_BYTES),
            bytes_per_job=reader.whole("bytes_per_job", 0, least=0, most=_MOST_BYTES),
            bytes_per_token=reader.whole("bytes_per_token", 0, least=0, most=_MOST_BYTES),
            memory_bytes=reader.whole("memory_bytes", 0, least=0, most=_MOST_BYTES),
            reference=Path(reference) if (reference := reader.text("reference")) else None,
            time_scale=reader.number("time_scale", 1.0, least=0.001, most=1000.0),
            context_tokens=reader.whole("context_tokens", 1_000_000, least=0),
            tokens=reader.whole("tokens", 1_000_000, least=0),
            faults=FaultOptions(
                crash_on=reader.text("crash_on"),
                crash_after_tokens=reader.whole("crash_after_tokens", 0, least=0),
                hang_on=reader.text("hang_on"),
                raise_on=reader.text("raise_on"),
                raise_kind=reader.text("raise_kind") or UNKNOWN,
            ),
        )
        if options.faults.raise_kind not in (MEMORY, DEVICE, UNKNOWN):
            raise reader.fault("raise_kind", f"{MEMORY!r}, {DEVICE!r} or {UNKNOWN!r}")
        reader.finish()
        return options
