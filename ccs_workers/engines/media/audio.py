"""Decodes sound: any container libsndfile reads, piece by piece, as mono float32; and brings it to 16 kHz."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import soundfile
from scipy.signal import resample_poly

from ccs_broker.contract.limits import DEFAULT_LIMITS
from ccs_broker.errors import (
    AudioTooLongError,
    InvalidAudioError,
    PayloadTooLargeError,
    UnsupportedMediaError,
)
from ccs_workers.engines.media.containers import refuse_partial_sound
from ccs_workers.engines.media.mp3 import with_true_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RATE_HZ", "AudioLimits", "AudioReader", "check_audio", "resample"]

#: The rate that speech models listen at.
RATE_HZ: Final = 16_000
#: Values (samples times channels) decoded at once: 4 MB.
_BLOCK_VALUES: Final = 1 << 20
_LOWEST_HZ, _HIGHEST_HZ = 1_000, 400_000
#: Float samples beyond this are numbers of another scale, such as 16-bit integers written as floats.
_LOUDEST: Final = 64.0
#: Keeps the resampling filter small for rates that have hardly a divisor in common with 16 kHz; off by less
#: than a millionth.
_LARGEST_RATIO: Final = 1_000
#: libsndfile says it can't know the length by one of these.
_LENGTH_UNKNOWN: Final = 1 << 62
_UNRECOGNIZED: Final = 1
_MP3_FRAME_SAMPLES: Final = 1152


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """How much sound is decoded."""

    #: Of the encoded file.
    size_bytes: int = DEFAULT_LIMITS.audio_bytes
    duration_s: float = 3600.0


class AudioReader:
    """One pass over an encoded sound, from its beginning to its end; a context manager.

    Channels are averaged and integers scaled to -1…1. Opening it reads no more than headers.

    Raises:
        InvalidAudioError: the bytes are empty, damaged, cut off, or hold values that aren't samples.
        UnsupportedMediaError: no container that libsndfile reads.
        PayloadTooLargeError, AudioTooLongError: over the limits, by size or by the header.
    """

    def __init__(self, data: bytes, limits: AudioLimits) -> None:
        _check_bytes(data, limits)
        self._file = _open(data)
        #: Of the file, and of the copy that is read in its place where one is.
        self.encoded_bytes = len(data)
        try:
            if self._file.format == "MP3":
                completed = with_true_length(data, self._file.frames)
                if completed is not data:
                    self._file.close()
                    self._file = _open(completed)
                    self.encoded_bytes += len(completed)
            self.rate_hz: int = self._file.samplerate
            self._told_samples: int = self._file.frames
            self._check_header(limits)
            refuse_partial_sound(data, self._file.format, self._file.extra_info)
        except BaseException:
            self._file.close()
            raise
        #: Samples read so far.
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def duration_s(self) -> float:
        """Seconds of sound, by the header."""
        return self._told_samples / self.rate_hz

    def read(self, samples: int) -> NDArray[np.float32]:
        """Return the next samples at the file's own rate, mono; fewer at the end, and none after it."""
        blocks = []
        while samples > 0 and len(block := self._block(samples)):
            blocks.append(block)
            samples -= len(block)
        return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)

    def skip(self, samples: int) -> None:
        """Go past the next samples."""
        while samples > 0 and (passed := len(self._block(samples))):
            samples -= passed

    def check_end(self) -> None:
        """Raise ``InvalidAudioError`` if the sound ended before its header said."""
        # The length of an MP3 may be a guess that is up to a frame too long.
        slack = _MP3_FRAME_SAMPLES if self._file.format == "MP3" else 0
        if self.position < self._told_samples - slack:
            raise InvalidAudioError(
                f"the sound is cut off: {self.position} of {self._told_samples} samples are there"
            )
        if self.position == 0:
            raise InvalidAudioError("the sound has no samples")

    def _block(self, most: int) -> NDArray[np.float32]:
        try:
            count = min(most, max(1, _BLOCK_VALUES // self._file.channels))
            block: NDArray[np.float32] = self._file.read(count, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise InvalidAudioError(f"the sound is damaged after {self.position} samples") from error
        if not np.isfinite(block).all():
            raise InvalidAudioError("the sound holds samples that aren't numbers (NaN or infinite)")
        if len(block) and (peak := float(np.abs(block).max())) > _LOUDEST:
            raise InvalidAudioError(f"the sound's float samples reach {peak:.0f}, where full scale is 1")
        self.position += len(block)
        mono: NDArray[np.float32] = block.mean(axis=1, dtype=np.float32)
        return mono

    def _check_header(self, limits: AudioLimits) -> None:
        if not _LOWEST_HZ <= self.rate_hz <= _HIGHEST_HZ:
            raise UnsupportedMediaError(
                f"a sample rate of {self.rate_hz} Hz; served are {_LOWEST_HZ} to {_HIGHEST_HZ} Hz"
            )
        if self._told_samples >= _LENGTH_UNKNOWN:
            raise InvalidAudioError("the header doesn't tell the length, as of sound written to a pipe")
        if self._told_samples <= 0:
            raise InvalidAudioError("the sound has no samples, or its header was never completed")
        if self.duration_s > limits.duration_s:
            raise AudioTooLongError(f"{self.duration_s:.1f} s of sound; the limit is {limits.duration_s:g} s")


def check_audio(data: bytes, limits: AudioLimits) -> None:
    """Raise what opening an ``AudioReader`` raises."""
    with AudioReader(data, limits):
        pass


def resample(samples: NDArray[np.float32], rate_hz: int) -> NDArray[np.float32]:
    """Bring mono samples to 16 kHz, filtered against aliasing."""
    if rate_hz == RATE_HZ:
        return samples
    ratio = Fraction(RATE_HZ, rate_hz).limit_denominator(_LARGEST_RATIO)
    resampled: NDArray[np.float32] = resample_poly(samples, ratio.numerator, ratio.denominator)
    return resampled.astype(np.float32, copy=False)[: math.ceil(len(samples) * RATE_HZ / rate_hz)]


def _check_bytes(data: bytes, limits: AudioLimits) -> None:
    if not data:
        raise InvalidAudioError("the sound is empty (0 bytes)")
    if len(data) > limits.size_bytes:
        raise PayloadTooLargeError(f"{len(data)} bytes of sound; the limit is {limits.size_bytes}")
    if data[:256].lstrip()[:1] == b"<":
        raise InvalidAudioError("the bytes are HTML or XML, not sound; was an error page saved?")


def _open(data: bytes) -> Any:
    try:
        return soundfile.SoundFile(BytesIO(data))
    except soundfile.LibsndfileError as error:
        if error.code == _UNRECOGNIZED:
            raise UnsupportedMediaError(
                "not a sound file that can be read; WAV, FLAC, OGG, MP3, AIFF and others of libsndfile can"
            ) from None
        raise InvalidAudioError(f"the sound's header is damaged (libsndfile error {error.code})") from None
