"""The job: what a caller asked for; immutable, versioned, validated on both sides."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from ccs_broker.contract.limits import MAX_LIFETIME_S, MAX_NAME_CHARS, MAX_PARTS
from ccs_broker.contract.parts import AudioPart, ImagePart, MediaRef, Part, TextPart
from ccs_broker.contract.sampling import Sampling
from ccs_broker.contract.words import WIRE_VERSION, Modality, Overload, QosClass

Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]*$", max_length=MAX_NAME_CHARS)
]
_JOB_ID: Final = r"^[A-Za-z0-9_-]{1,64}$"
JobId = Annotated[str, StringConstraints(pattern=_JOB_ID)]


def is_job_id(value: object) -> TypeGuard[str]:
    """True for what a job, or a task on our queues, can have as its id."""
    return isinstance(value, str) and re.fullmatch(_JOB_ID, value) is not None


class Job(BaseModel):
    """One request. Unknown fields are accepted and dropped; a higher wire version is refused."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)

    v: int = Field(default=WIRE_VERSION, ge=1, le=WIRE_VERSION)
    id: JobId
    modality: Modality
    #: Alias from the model file; None: the modality's default.
    model: Name | None = None
    parts: tuple[Part, ...] = Field(min_length=1, max_length=MAX_PARTS)
    sampling: Sampling = Sampling()
    qos: QosClass = QosClass.STANDARD
    #: Seconds from submission by which the job must have finished.
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_LIFETIME_S)
    #: What becomes of it when it can't be done in time.
    overload: Overload = Overload.RELEGATE
    #: Seconds one attempt may run.
    max_runtime_s: float | None = Field(default=None, gt=0, le=MAX_LIFETIME_S)
    tenant: Name = "default"
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _parts_fit_modality(self) -> Self:
        images, audio = len(self.images), len(self.audio)
        if self.modality is Modality.TEXT:
            if images or audio:
                raise ValueError("a text job takes no images and no audio")
            if not self.prompt:
                raise ValueError("a text job needs a prompt that is not empty")
        elif self.modality is Modality.VISION and (not images or audio):
            raise ValueError("a vision job needs at least one image and takes no audio")
        elif self.modality is Modality.AUDIO and (audio != 1 or images):
            raise ValueError("an audio job needs exactly one audio part and takes no images")
        elif self.modality is Modality.FUSION and len(self.parts) == 1:
            raise ValueError("a fusion job needs at least two parts")
        return self

    @property
    def prompt(self) -> str:
        """All text parts, joined by a newline."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[MediaRef, ...]:
        """References of all image parts, in order."""
        return tuple(part.media for part in self.parts if isinstance(part, ImagePart))

    @property
    def audio(self) -> tuple[MediaRef, ...]:
        """References of all audio parts, in order."""
        return tuple(part.media for part in self.parts if isinstance(part, AudioPart))

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """References of all media parts, in order."""
        return tuple(part.media for part in self.parts if not isinstance(part, TextPart))
