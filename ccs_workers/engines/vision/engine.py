"""The vision engine: reads the text in each picture line by line, and names what the picture shows."""

from __future__ import annotations

import time
from io import BytesIO
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from ccs_broker.contract import Usage
from ccs_broker.errors import InternalError, InvalidInputError
from ccs_workers.engines.batching import BatchEngine
from ccs_workers.engines.course import Ask
from ccs_workers.engines.footprint import KEPT_BYTES, footprint_of, give_back, map_large_blocks
from ccs_workers.engines.loading import pick_device, quiet_transformers
from ccs_workers.engines.media import ImageLimits, decode_image, size_of_picture
from ccs_workers.engines.protocol import EngineInfo, Sized
from ccs_workers.engines.vision.boxes import Box
from ccs_workers.engines.vision.classifier import Classifier
from ccs_workers.engines.vision.options import CLASSIFY, READ, VisionOptions
from ccs_workers.engines.vision.text_reader import TextReader

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pydantic import JsonValue

    from ccs_workers.engines.course import Course, Piece, Steps
    from ccs_workers.engines.protocol import Emit, EngineJob
    from ccs_workers.models.spec import ModelSpec

__all__ = ["VisionEngine"]

_FIND = "find"
#: Longest side of a picture in work: enough for small print on a page, and 50 MB at most.
_WORK_SIDE = 4096
_LONE_CHARACTER_SCORE = 0.9
#: Of what the warm-up's steps took on top, this part is counted on to be there for jobs' steps.
_COVERED = 0.75
#: For the estimate of a job's memory before its headers are read: a photograph has about 3 pixels a byte and is held
#: as 4 bytes a pixel beside its encoded bytes; a picture of text has few bytes and up to some million pixels.
_BYTES_PER_MEDIA_BYTE, _BYTES_PER_IMAGE = 16.0, 12.0 * 2**20
#: Of a job besides: its picture as the classifier takes it, boxes, lines.
_JOB_BYTES = 1 << 20
#: The warm-up's picture: a square, and as wide a line as the reader takes.
_WARM_SIDE, _LINE_HEIGHT = 1792, 26.0
#: What is told of a picture, both in its progress and at the job's end.
_FOUND = ("labels", "lines", "warnings")


class VisionEngine(BatchEngine):
    """Reads and classifies pictures: a ``Delta`` per line of text as it is read, a ``Progress`` per picture.

    A job's text is what was read: lines end with a newline between them, several pictures are separated by an
    empty line. Where nothing was read the picture's text is its likeliest label, as in ``espresso (0.90)``.
    Text is read upright and row by row; columns are not told apart. A job's prompt and sampling are ignored.
    ``Done.data`` holds ``images``: for each its ``lines`` and ``labels`` with their scores, and ``warnings``;
    a ``Progress`` holds the same of its picture, and ``text_end``.
    Options: see ``VisionOptions``.
    """

    def __init__(self, spec: ModelSpec, emit: Emit) -> None:
        super().__init__(spec, emit)
        self._options = VisionOptions.of(spec)
        #: Whether jobs hold memory of the model's device between their steps, and what of it steps have; by loading.
        self._on_host = False
        self._covered_bytes = 0
        self._copies_pictures = True
        self._reader: TextReader | None = None
        self._classifier: Classifier | None = None

    def load(self) -> EngineInfo:
        """Load what the tasks need and start the engine's thread."""
        began = time.monotonic()
        quiet_transformers()
        map_large_blocks()
        torch.set_num_threads(self._options.torch_threads)
        device = pick_device(self._spec)
        self._classify_batch = 1 if device.type == "cpu" else self._options.max_batch
        if READ in self._options.tasks:
            self._reader = TextReader(self._spec, device, self._options.read_side)
        if CLASSIFY in self._options.tasks:
            self._classifier = Classifier(self._spec, device, self._options.top_k)
        self._on_host = device.type == "cpu"
        self._copies_pictures = self._classifier is not None and self._classifier.copies_pictures
        fixed_bytes = self._warm_up(str(device))
        self._begin()
        return EngineInfo(
            alias=self._spec.alias,
            modality=self._spec.modality.value,
            device=str(device),
            dtype="float32",
            weights_bytes=sum(part.weights_bytes for part in (self._reader, self._classifier) if part),
            load_s=time.monotonic() - began,
            takes_prompt=False,
            fixed_bytes=fixed_bytes,
            need=(0.0, 0.0, 0.0, _BYTES_PER_IMAGE, _BYTES_PER_MEDIA_BYTE) if self._on_host else (0.0,) * 5,
        )

    def _warm_up(self, device: str) -> int:
        """Take the largest step of each kind; return the peak of the process's memory."""
        give_back()
        footprint = footprint_of(device)
        rest_bytes = footprint.use().used_bytes
        with footprint.lap() as lap:
            image = Image.new("RGB", (_WARM_SIDE, _WARM_SIDE), "white")
            encoded = BytesIO()
            image.save(encoded, "PNG")
            image = decode_image(encoded.getvalue(), ImageLimits(), longest_side=_WORK_SIDE).image
            if self._classifier:
                self._classifier.classify([self._classifier.pixels(image)] * self._classify_batch)
            if self._reader:
                self._reader.find(image)
                self._reader.read(image, Box(left=0.0, top=0.0, right=float(_WARM_SIDE), bottom=_LINE_HEIGHT))
        # One thread takes all steps, so what they have in common is that one of them runs at a time.
        self._covered_bytes = round(_COVERED * max(0, lap.peak_bytes - rest_bytes))
        give_back()
        return lap.peak_bytes + (KEPT_BYTES if self._on_host else 0)

    def _check(self, job: EngineJob) -> Sized:
        if not job.images:
            raise InvalidInputError("a vision job has at least one picture")
        held_bytes = step_bytes = 0
        for number, data in enumerate(job.images, start=1):
            try:
                size = size_of_picture(
                    data, self._options.limits, longest_side=_WORK_SIDE, is_copied=self._copies_pictures
                )
            except InvalidInputError as error:
                raise _of_picture(error, number, len(job.images)) from error
            # One picture of a job is decoded at a time.
            held_bytes = max(held_bytes, size.held_bytes)
            step_bytes = max(step_bytes, size.step_bytes - self._covered_bytes)
        if not self._on_host:
            # A GPU holds none of it beyond a step; those are all of one size.
            return Sized(need_bytes=0)
        held_bytes += sum(map(len, job.images)) + _JOB_BYTES
        return Sized(need_bytes=held_bytes + step_bytes, step_bytes=step_bytes)

    def _largest_batch(self, kind: str) -> int:
        return self._classify_batch if kind == CLASSIFY else 1

    def _run(self, kind: str, pieces: Sequence[Piece]) -> Sequence[Any]:
        payloads = [piece.payload for piece in pieces]
        if kind == CLASSIFY and self._classifier:
            return self._classifier.classify(payloads)
        if kind == _FIND and self._reader:
            return [self._reader.find(image) for image in payloads]
        if kind == READ and self._reader:
            return [self._reader.read(image, box) for image, box in payloads]
        raise InternalError(f"nothing is loaded for {kind!r}")

    def _restore(self, course: Course) -> None:
        done, images = course.earlier_progress, len(course.job.images)
        expected = [(number, images) for number in range(1, min(len(done), images) + 1)]
        if [(entry["image"], entry["images"]) for entry in done] != expected:
            raise ValueError
        course.usage = Usage(images=len(done))
        course.data["images"] = [_found_in(entry) for entry in done]

    def _steps(self, course: Course) -> Steps:
        images = course.job.images
        told: list[JsonValue] = [_found_in(entry) for entry in course.earlier_progress]
        course.data["images"] = told
        script = _Script(course)
        for number, data in enumerate(images[len(told) :], start=len(told) + 1):
            script.begin_picture()
            try:
                picture = decode_image(data, self._options.limits, longest_side=_WORK_SIDE)
            except InvalidInputError as error:
                raise _of_picture(error, number, len(images)) from error
            labels = yield from self._classify(picture.image)
            lines = yield from self._read(picture.image, script)
            if labels and not lines:
                script.write("{} ({:.2f})".format(*labels[0]))
            found: dict[str, JsonValue] = {"labels": _as_json(labels), "lines": _as_json(lines)}
            if picture.warnings:
                found["warnings"] = list(picture.warnings)
            told.append(found)
            course.usage = course.usage.model_copy(update={"images": number})
            course.end_part({"image": number, "images": len(images), **found})

    def _classify(self, image: Image.Image) -> Generator[Ask, Any, list[tuple[str, float]]]:
        if self._classifier is None:
            return []
        (labels,) = yield Ask(kind=CLASSIFY, payloads=(self._classifier.pixels(image),))
        return list(labels)

    def _read(self, image: Image.Image, script: _Script) -> Generator[Ask, Any, list[tuple[str, float]]]:
        """Read row by row; parts of a row that stand far apart are joined by a space."""
        if self._reader is None:
            return []
        lines = []
        (rows,) = yield Ask(kind=_FIND, payloads=(image,))
        for row in rows:
            parts = []
            for box in row:
                ((text, score),) = yield Ask(kind=READ, payloads=((image, box),))
                if self._is_legible(text, score):
                    parts.append((text, score))
            if parts:
                line = " ".join(text for text, _ in parts)
                script.write(line)
                lines.append((line, min(score for _, score in parts)))
        return lines

    def _is_legible(self, text: str, score: float) -> bool:
        least = self._options.min_line_score
        return bool(text) and score >= (least if len(text) > 1 else max(least, _LONE_CHARACTER_SCORE))


class _Script:
    """Writes a job's text line by line."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._before = "\n" if course.text_end else ""

    def begin_picture(self) -> None:
        """Let an empty line stand between what was written and what comes."""
        if self._before:
            self._before = "\n\n"

    def write(self, line: str) -> None:
        """Emit one more line."""
        self._course.write(self._before + line)
        self._before = "\n"


def _as_json(pairs: list[tuple[str, float]]) -> JsonValue:
    return [[text, score] for text, score in pairs]


def _found_in(entry: Mapping[str, JsonValue]) -> JsonValue:
    return {name: entry[name] for name in _FOUND if name in entry}


def _of_picture(error: InvalidInputError, number: int, count: int) -> InvalidInputError:
    """Return the same error saying which of several pictures it is about."""
    return error if count == 1 else type(error)(f"picture {number} of {count}: {error.message}")
