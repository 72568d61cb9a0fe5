"""The Whisper model: windows of up to 30 s in, texts out; greedy, so a window has one text in any batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.models.whisper import WhisperForConditionalGeneration

from ccs_broker.errors import ConfigurationError, InternalError
from ccs_workers.engines.loading import load_part, load_pretrained, pick_device, weights_bytes
from ccs_workers.engines.media import RATE_HZ

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ccs_workers.models.spec import ModelSpec

__all__ = ["LONGEST_WINDOW_S", "Transcript", "WhisperModel"]

#: What the model listens to at once, whatever is in it.
LONGEST_WINDOW_S: Final = 30
_LONGEST_SAMPLES: Final = LONGEST_WINDOW_S * RATE_HZ


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What was heard in one window."""

    text: str
    tokens: int


class WhisperModel:
    """A loaded model with its feature extractor and tokenizer."""

    def __init__(self, spec: ModelSpec, language: str | None) -> None:
        """Load from local files.

        Raises:
            ConfigurationError: the folder isn't a whole Whisper model, or ``language`` doesn't fit it.
        """
        device = pick_device(spec)
        processor = load_part(AutoProcessor.from_pretrained, spec)
        self._model: Any = load_pretrained(AutoModelForSpeechSeq2Seq, spec, device)
        if not isinstance(self._model, WhisperForConditionalGeneration):
            kind = type(self._model).__name__
            raise ConfigurationError(f"model {spec.alias!r}: {spec.source} is a {kind}, not a Whisper model")
        self._extractor: Any = processor.feature_extractor
        self._tokenizer: Any = processor.tokenizer
        self._special_ids = frozenset(self._tokenizer.all_special_ids)
        self._settings = self._language_settings(spec, language)
        self.device = device
        self.dtype: torch.dtype = self._model.dtype
        self.weights_bytes = weights_bytes(self._model)
        self._probe(spec)

    def features(self, samples: NDArray[np.float32]) -> torch.Tensor:
        """Return the spectrogram (1, mel bands, 3000) of mono samples at 16 kHz, up to 30 s."""
        # The extractor would cut what is longer, and take a second axis for a batch, without a word.
        if samples.ndim != 1 or len(samples) > _LONGEST_SAMPLES:
            raise InternalError(f"a window of shape {samples.shape}; it must be mono and last 30 s at most")
        made = self._extractor(
            samples, sampling_rate=RATE_HZ, truncation=False, padding="max_length", return_tensors="pt"
        )
        features: torch.Tensor = made.input_features
        return features

    @property
    def features_bytes(self) -> int:
        """Bytes of one window's spectrogram, as ``features`` makes it."""
        frames = 2 * self._model.config.max_source_positions
        size: int = self._model.config.num_mel_bins * frames * torch.float32.itemsize
        return size

    def answer_bytes(self, windows: int) -> int:
        """Bytes of keys and values of the longest answers to so many windows at once, and of a copy of a layer's."""
        config = self._model.config
        layer_bytes = 2 * config.d_model * config.max_target_positions * self.dtype.itemsize
        size: int = windows * layer_bytes * (config.decoder_layers + 1)
        return size

    def transcribe(
        self,
        features: Sequence[torch.Tensor],
        cancelled: Callable[[], Sequence[bool]],
        *,
        most_tokens: int | None = None,
    ) -> list[Transcript]:
        """Return the text of each window; one whose ``cancelled`` turns true ends at its next token."""
        batch = torch.cat(list(features)).to(self.device, self.dtype)
        heard = torch.ones(batch.shape[0], batch.shape[2], dtype=torch.long, device=self.device)
        bound = {} if most_tokens is None else {"max_new_tokens": most_tokens}
        with torch.inference_mode():
            rows = self._model.generate(
                batch,
                attention_mask=heard,
                do_sample=False,
                num_beams=1,
                return_timestamps=False,
                stopping_criteria=StoppingCriteriaList([_Cancelled(cancelled)]),
                **bound,
                **self._settings,
            ).tolist()
        return [self._transcript(row) for row in rows]

    def _transcript(self, row: list[int]) -> Transcript:
        spoken = [token for token in row if token not in self._special_ids]
        return Transcript(text=self._tokenizer.decode(spoken), tokens=len(spoken))

    def _language_settings(self, spec: ModelSpec, language: str | None) -> dict[str, str]:
        config = self._model.generation_config
        if not getattr(config, "is_multilingual", False):
            if language not in (None, "en"):
                raise ConfigurationError(f"model {spec.alias!r} knows English only; remove 'language'")
            return {}
        if language is None:
            return {"task": "transcribe"}
        if f"<|{language}|>" not in config.lang_to_id:
            raise ConfigurationError(f"model {spec.alias!r} doesn't know the language {language!r}")
        return {"task": "transcribe", "language": language}

    def _probe(self, spec: ModelSpec) -> None:
        """Refuse weights that are numbers but lead to none."""
        silence = self.features(np.zeros(RATE_HZ, np.float32)).to(self.device, self.dtype)
        start = torch.tensor([[self._model.config.decoder_start_token_id]], device=self.device)
        with torch.inference_mode():
            scores = self._model(input_features=silence, decoder_input_ids=start).logits
        if not torch.isfinite(scores).all():
            raise ConfigurationError(f"model {spec.alias!r}: its scores for a first token aren't finite")


class _Cancelled(StoppingCriteria):  # type: ignore[misc]  # transformers isn't typed here
    """Ends the rows of jobs that were cancelled, so that a cancel takes effect at the next token."""

    def __init__(self, cancelled: Callable[[], Sequence[bool]]) -> None:
        self._cancelled = cancelled

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return which rows end here."""
        return torch.tensor(self._cancelled(), device=input_ids.device)
