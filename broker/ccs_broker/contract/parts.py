"""The parts of a job: text inline, media by reference."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class MediaRef(_Frozen):
    """Names bytes in the blob store by their SHA-256; the bytes never ride in a message."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=1, strict=True)


class TextPart(_Frozen):
    """A piece of the prompt."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(_Frozen):
    """An encoded picture (PNG, JPEG, WebP, GIF, BMP, TIFF)."""

    type: Literal["image"] = "image"
    media: MediaRef


class AudioPart(_Frozen):
    """An encoded sound (WAV, FLAC, OGG, MP3 and whatever else libsndfile reads)."""

    type: Literal["audio"] = "audio"
    media: MediaRef


Part = Annotated[TextPart | ImagePart | AudioPart, Field(discriminator="type")]
