"""Make a job from submit's keyword arguments, or from the JSON of a plain Celery producer; no I/O.

Sizes are checked before anything is copied, decoded or hashed, and errors name field and rule, never a value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, TypedDict, TypeVar, cast

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ccs_broker.contract.job import Job
from ccs_broker.contract.limits import DEFAULT_LIMITS, MAX_PARTS, Limits
from ccs_broker.contract.media import (
    MediaInput,
    MediaSlot,
    PathReader,
    load_media,
    reference_to,
    refuse_paths,
)
from ccs_broker.contract.parts import MediaRef
from ccs_broker.contract.wire import invalid_input
from ccs_broker.contract.words import Modality, Overload, QosClass
from ccs_broker.errors import InvalidInputError, PayloadTooLargeError

Word = TypeVar("Word", bound=StrEnum)

#: Levels of lists and objects in ``metadata``; every JSON reader on the way can follow that many.
MAX_METADATA_DEPTH: Final = 32

_SAMPLING: Final = ("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed")
_PLAIN: Final = ("model", "deadline_s", "max_runtime_s", "tenant")


class JobOptions(TypedDict, total=False):
    """What a caller may say about a job beside its modality; what is left out, or None, has its default."""

    prompt: str
    images: Sequence[MediaInput] | MediaInput | None
    audio: MediaInput | Sequence[MediaInput] | None
    #: Alias from the model file; None: the modality's default.
    model: str | None
    qos: QosClass | str
    #: Seconds from submission by which the job must have finished.
    deadline_s: float | None
    #: What becomes of it when it can't be done in time: ``relegate``, ``refuse`` or ``accept``.
    overload: Overload | str
    #: Seconds one attempt may run.
    max_runtime_s: float | None
    tenant: str
    metadata: Mapping[str, JsonValue] | None
    max_new_tokens: int
    #: 0 is greedy.
    temperature: float
    top_p: float | None
    top_k: int | None
    #: Over 1: tokens that prompt or answer have already become less likely.
    repetition_penalty: float
    seed: int | None
    #: One string or several; the text ends before the first that appears.
    stop: str | Sequence[str] | None
    #: Beams are not served: anything over 1 is refused.
    num_beams: int


_KNOWN: Final = frozenset(JobOptions.__annotations__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltJob:
    """A valid job, and the media its references name that are still to be uploaded, by SHA-256."""

    job: Job
    blobs: dict[str, bytes]


def build_job(
    modality: Modality | str,
    options: Mapping[str, object],
    *,
    job_id: str,
    limits: Limits = DEFAULT_LIMITS,
    read_path: PathReader = refuse_paths,
) -> BuiltJob:
    """Make a job from the arguments of submit.

    Raises:
        InvalidInputError: an argument is unknown or breaks a rule.
        PayloadTooLargeError: a text or a medium is over one of the ``limits``.
        UnsupportedMediaError: a medium is given by URL.
    """
    if not _KNOWN.issuperset(options):
        unknown = min(set(options) - _KNOWN)
        raise InvalidInputError(f"unknown argument {unknown!r}; known: {', '.join(sorted(_KNOWN))}")
    return _Builder(options, limits, read_path).build(parse_word(Modality, "modality", modality), job_id)


def job_from_wire(
    spec: object,
    *,
    job_id: str,
    modality_default: Modality,
    qos_default: QosClass = QosClass.STANDARD,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[Job, dict[str, bytes]]:
    """Make a job from decoded JSON: a whole job (it has ``parts``), or submit's arguments as an object.

    Media are references or base64, never paths. Fields that aren't known are accepted and dropped.

    Returns:
        The job under ``job_id``, and the media to upload by SHA-256.

    Raises:
        InvalidInputError: as :func:`build_job`.
    """
    if not isinstance(spec, Mapping) or not all(isinstance(name, str) for name in spec):
        raise InvalidInputError("a job should be a JSON object")
    filled = {"modality": modality_default, "qos": qos_default}
    filled |= {name: value for name, value in spec.items() if value is not None}
    if "parts" in filled:
        return _whole_job({**filled, "id": job_id}, limits), {}
    options = {name: value for name, value in filled.items() if name in _KNOWN}
    modality = parse_word(Modality, "modality", filled["modality"])
    built = _Builder(options, limits, refuse_paths).build(modality, job_id, version=filled.get("v", 1))
    return built.job, built.blobs


def parse_word(words: type[Word], field: str, value: object) -> Word:
    """A member of a closed set; ``InvalidInputError`` lists the set."""
    try:
        return words(cast("str", value))
    except ValueError:
        raise InvalidInputError(f"{field}: should be one of {', '.join(words)}") from None


class _Builder:
    """Gathers the parts of one job."""

    def __init__(self, options: Mapping[str, object], limits: Limits, read_path: PathReader) -> None:
        # None means "not said", so that JSON from any language can write its nulls.
        self._options = {name: value for name, value in options.items() if value is not None}
        self._limits = limits
        self._read_path = read_path
        self._blobs: dict[str, bytes] = {}
        self._media_bytes = 0

    def build(self, modality: Modality, job_id: str, version: object = 1) -> BuiltJob:
        """The job and its media."""
        options = self._options
        beams = options.get("num_beams", 1)
        if beams != 1:
            raise InvalidInputError("num_beams: beam search is not served; leave it out or give 1")
        fields: dict[str, object] = {name: options[name] for name in _PLAIN if name in options}
        if "metadata" in options:
            fields["metadata"] = _checked_metadata(options["metadata"], self._limits)
        fields |= {
            "v": version,
            "id": job_id,
            "modality": modality,
            "qos": parse_word(QosClass, "qos", options.get("qos", QosClass.STANDARD)),
            "overload": parse_word(Overload, "overload", options.get("overload", Overload.RELEGATE)),
            "sampling": self._sampling(),
            "parts": self._parts(),
        }
        return BuiltJob(job=_validated(fields), blobs=self._blobs)

    def _sampling(self) -> dict[str, object]:
        sampling: dict[str, object] = {
            name: self._options[name] for name in _SAMPLING if name in self._options
        }
        stop = self._options.get("stop")
        if stop is not None:
            sampling["stop"] = (stop,) if isinstance(stop, str) else stop
        return sampling

    def _parts(self) -> list[dict[str, object]]:
        prompt = self._options.get("prompt", "")
        _check_text("prompt", prompt, self._limits)
        images = _as_list("images", self._options.get("images"))
        audio = _as_list("audio", self._options.get("audio"))
        if len(images) + len(audio) >= MAX_PARTS:
            raise PayloadTooLargeError(f"images and audio: more than {MAX_PARTS - 1} media in one job")
        parts: list[dict[str, object]] = [{"type": "text", "text": prompt}] if prompt else []
        for number, item in enumerate(images):
            slot = self._slot(f"images[{number}]", "image_bytes", self._limits.image_bytes)
            parts.append({"type": "image", "media": self._medium(item, slot)})
        for number, item in enumerate(audio):
            field = "audio" if len(audio) == 1 else f"audio[{number}]"
            slot = self._slot(field, "audio_bytes", self._limits.audio_bytes)
            parts.append({"type": "audio", "media": self._medium(item, slot)})
        # An empty part of text lets the job say itself what its modality misses.
        return parts or [{"type": "text", "text": ""}]

    def _slot(self, field: str, limit_name: str, limit_bytes: int) -> MediaSlot:
        room = self._limits.media_bytes - self._media_bytes
        if room < limit_bytes:
            limit_name, limit_bytes = "media_bytes (what is left of it)", room
        return MediaSlot(field=field, limit_name=limit_name, limit_bytes=limit_bytes)

    def _medium(self, item: object, slot: MediaSlot) -> MediaRef:
        found = load_media(item, slot, self._read_path)
        reference = reference_to(found) if isinstance(found, bytes) else found
        if isinstance(found, bytes):
            self._blobs[reference.sha256] = found
        self._media_bytes += reference.size_bytes
        return reference


def _whole_job(fields: Mapping[str, object], limits: Limits) -> Job:
    """A job given as such, held to the same limits."""
    job = _validated({**fields, "metadata": _checked_metadata(fields.get("metadata", {}), limits)})
    _check_text("parts", job.prompt, limits)
    total = 0
    for name, references, limit_bytes in (
        ("image_bytes", job.images, limits.image_bytes),
        ("audio_bytes", job.audio, limits.audio_bytes),
    ):
        slot = MediaSlot(field="parts", limit_name=name, limit_bytes=limit_bytes)
        for reference in references:
            slot.check(reference.size_bytes)
            total += reference.size_bytes
    if total > limits.media_bytes:
        raise PayloadTooLargeError(
            f"parts: {total} bytes of media are over the limit media_bytes of {limits.media_bytes}"
        )
    return job


def _validated(fields: Mapping[str, object]) -> Job:
    try:
        return Job.model_validate(fields)
    except ValidationError as error:
        # The cause would bring the value into every traceback.
        raise invalid_input(error) from None


def _check_text(field: str, text: object, limits: Limits) -> None:
    if not isinstance(text, str):
        raise InvalidInputError(f"{field}: should be a string, not {type(text).__name__}")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInputError(f"{field}: is not valid Unicode: it holds a lone surrogate") from None
    if size > limits.text_bytes:
        raise PayloadTooLargeError(
            f"{field}: {size} bytes of UTF-8 are over the limit text_bytes of {limits.text_bytes}"
        )


def _checked_metadata(metadata: object, limits: Limits) -> object:
    if not isinstance(metadata, Mapping):
        raise InvalidInputError(f"metadata: should be an object, not {type(metadata).__name__}")
    _check_shape(metadata, limits.metadata_bytes)
    try:
        size = len(to_json(metadata))
    except (PydanticSerializationError, UnicodeEncodeError):
        raise InvalidInputError("metadata: holds what JSON can't carry") from None
    if size > limits.metadata_bytes:
        raise PayloadTooLargeError(
            f"metadata: {size} bytes of JSON are over the limit metadata_bytes of {limits.metadata_bytes}"
        )
    return metadata


def _check_shape(metadata: object, most_values: int) -> None:
    """Refuse what is too deep or has too many values, also where it holds itself."""
    seen = 0
    level: list[object] = [metadata]
    for _ in range(MAX_METADATA_DEPTH + 1):
        seen += len(level)
        if seen > most_values:
            # Every value takes a byte at least.
            raise PayloadTooLargeError(f"metadata: is over the limit metadata_bytes of {most_values}")
        level = [item for value in level for item in _values_in(value)]
        if not level:
            return
    raise InvalidInputError(f"metadata: is nested deeper than {MAX_METADATA_DEPTH} levels")


def _values_in(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _as_list(field: str, given: object) -> list[object]:
    """What was given as a list; one medium by itself is a list of one."""
    if given is None:
        return []
    if isinstance(given, str | bytes | bytearray | memoryview | os.PathLike | MediaRef | Mapping):
        return [given]
    if isinstance(given, Iterable):
        # A generator may have no end.
        return list(islice(given, MAX_PARTS))
    raise InvalidInputError(f"{field}: should be a medium or a list of them, not {type(given).__name__}")
