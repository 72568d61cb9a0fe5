"""The options of a Whisper model in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ccs_broker.contract.limits import DEFAULT_LIMITS
from ccs_workers.engines.media import AudioLimits
from ccs_workers.engines.options import OptionReader

if TYPE_CHECKING:
    from ccs_workers.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperOptions:
    """What can be said of a Whisper model besides its folder, dtype and device."""

    #: Most windows of one batch, of one job or of several. Option ``max_batch``, 4.
    max_batch: int
    #: Options ``max_audio_s`` (seconds of sound of a job, 3600) and ``max_audio_bytes`` (of its file).
    limits: AudioLimits
    #: Windows that are nowhere louder are not shown to the model; ``false`` switches that off.
    #: Option ``silence_dbfs``, -55.
    silence_dbfs: float | None
    #: Language of the speech, such as "de"; None: the model finds out. Refused for an English-only model.
    #: Option ``language``.
    language: str | None
    #: Threads of one operation on a CPU. Option ``torch_threads``, 1.
    torch_threads: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Read and check the options of a spec.

        Raises:
            ConfigurationError: an unknown name or a value of the wrong kind.
        """
        reader = OptionReader(spec)
        defaults = AudioLimits()
        options = cls(
            max_batch=reader.whole("max_batch", 4, most=64),
            limits=AudioLimits(
                size_bytes=reader.whole("max_audio_bytes", DEFAULT_LIMITS.audio_bytes),
                duration_s=reader.number("max_audio_s", defaults.duration_s, least=0.1, most=86_400.0),
            ),
            silence_dbfs=reader.threshold("silence_dbfs", -55.0, least=-119.0, most=0.0),
            language=reader.text("language"),
            torch_threads=reader.whole("torch_threads", 1, most=256),
        )
        reader.finish()
        return options
