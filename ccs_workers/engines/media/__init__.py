"""Decoding of sounds and pictures: any bytes become samples and pixels of one kind; no torch in here."""

from ccs_workers.engines.media.audio import RATE_HZ, AudioLimits, AudioReader, check_audio, resample
from ccs_workers.engines.media.image import ImageLimits, Picture, check_image, decode_image
from ccs_workers.engines.media.loudness import LevelMeter, has_sound
from ccs_workers.engines.media.sizes import MediaSize, size_of_picture, size_of_sound
from ccs_workers.engines.media.windows import plan_windows

__all__ = [
    "RATE_HZ",
    "AudioLimits",
    "AudioReader",
    "ImageLimits",
    "LevelMeter",
    "MediaSize",
    "Picture",
    "check_audio",
    "check_image",
    "decode_image",
    "has_sound",
    "plan_windows",
    "resample",
    "size_of_picture",
    "size_of_sound",
]
