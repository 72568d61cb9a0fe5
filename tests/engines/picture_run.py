"""Decodes pictures in this process; prints as JSON what their headers said they take, and what they took."""

from __future__ import annotations

import json

from PIL import Image

from ccs_workers.engines.footprint import footprint_of, give_back, map_large_blocks
from ccs_workers.engines.media import ImageLimits, decode_image, size_of_picture
from tests.media_jobs import picture

SIDE = 4096
PICTURES = (
    ((2000, 2000), "PNG", {}),
    ((4000, 4000), "PNG", {}),
    ((5000, 5000), "PNG", {}),
    ((7000, 7000), "PNG", {}),
    ((12_000, 3000), "PNG", {}),
    ((3000, 14_000), "PNG", {}),
    ((5000, 5000), "JPEG", {}),
    ((3300, 3200), "BMP", {}),
    ((4000, 3000), "JPEG", {"progressive": True}),
    ((5000, 4000), "WEBP", {}),
    ((5000, 5000), "TIFF", {"compression": "tiff_deflate"}),
)


def main() -> None:
    map_large_blocks()
    meter, told = footprint_of("cpu"), []
    for size, container, settings in PICTURES:
        data = picture(Image.radial_gradient("L").resize(size).convert("RGB"), container, **settings)
        said = size_of_picture(data, ImageLimits(), longest_side=SIDE, is_copied=False)
        give_back()
        meter.use()
        before = meter.use().used_bytes
        with meter.lap() as lap:
            image = decode_image(data, ImageLimits(), longest_side=SIDE).image
        told.append(
            {
                "name": f"{container} {size}",
                "said": said.held_bytes + said.step_bytes,
                "took": lap.peak_bytes - before,
                "held_said": said.held_bytes,
                "held": meter.use().used_bytes - before,
            }
        )
        del image
    print(json.dumps(told))  # noqa: T201 - its only output


if __name__ == "__main__":
    main()
