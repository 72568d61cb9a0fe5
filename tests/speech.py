"""A short clip of speech with its words, and the spec of the model that hears them."""

from __future__ import annotations

import re
from pathlib import Path

from ccs_broker.contract import Modality
from ccs_workers.models.spec import ModelSpec

SHORT_WORDS = "he might even have been made amiable himself"
SHORT_CLIP = Path(__file__).parent / "data" / "speech" / "librivox-0930.flac"


def words(text: str) -> str:
    """The words alone, in lower case."""
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def whisper_spec(models_dir: Path, **options: object) -> ModelSpec:
    return ModelSpec(
        alias="whisper",
        modality=Modality.AUDIO,
        engine="whisper",
        path=models_dir / "whisper-tiny-en",
        device="cpu",
        options=options,
    )
