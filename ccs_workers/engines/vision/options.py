"""The options of a vision model in the model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ccs_broker.contract.limits import DEFAULT_LIMITS
from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.media import ImageLimits
from ccs_workers.engines.options import OptionReader

if TYPE_CHECKING:
    from ccs_workers.models.spec import ModelSpec

READ: Final = "read"
CLASSIFY: Final = "classify"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionOptions:
    """What can be said of a vision model besides its folder and device."""

    #: What is done with each picture. Option ``tasks``, ["read", "classify"].
    tasks: tuple[str, ...]
    #: Options ``max_image_bytes`` (of an encoded picture), ``max_pixels`` (50 million) and ``max_frames``
    #: (1000, of an animation, whose first frame is looked at).
    limits: ImageLimits
    #: Labels told of each picture, the likeliest first. Option ``top_k``, 5.
    top_k: int
    #: Lines read with less confidence are left out; a lone character needs 0.9, as ornaments look like one.
    #: Option ``min_line_score``, 0.6.
    min_line_score: float
    #: Longest side, in pixels, at which text is looked for; larger finds smaller print, and takes longer by
    #: its square. Option ``read_side``, 960.
    read_side: int
    #: Most pictures of one batch on a GPU; on a CPU they run one by one. Option ``max_batch``, 8.
    max_batch: int
    #: Threads of one operation on a CPU. Option ``torch_threads``, 1.
    torch_threads: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Read and check the options of a spec.

        Raises:
            ConfigurationError: an unknown name, a value of the wrong kind, or another dtype than float32.
        """
        if spec.dtype not in ("float32", "auto"):
            raise ConfigurationError(f"model {spec.alias!r}: 'dtype' must be 'float32' for a vision model")
        reader = OptionReader(spec)
        defaults = ImageLimits()
        options = cls(
            tasks=reader.words("tasks", (READ, CLASSIFY)),
            limits=ImageLimits(
                size_bytes=reader.whole("max_image_bytes", DEFAULT_LIMITS.image_bytes),
                pixels=reader.whole("max_pixels", defaults.pixels),
                frames=reader.whole("max_frames", defaults.frames),
            ),
            top_k=reader.whole("top_k", 5, most=1000),
            min_line_score=reader.number("min_line_score", 0.6, least=0.0, most=1.0),
            read_side=reader.whole("read_side", 960, least=64, most=4096),
            max_batch=reader.whole("max_batch", 8, most=256),
            torch_threads=reader.whole("torch_threads", 1, most=256),
        )
        reader.finish()
        return options
