"""Pictures of every format, mode and orientation become upright RGB; bombs and broken files cost nothing."""

from __future__ import annotations

import struct
import time
import warnings
import zlib
from io import BytesIO

import numpy as np
import psutil
import pytest
from PIL import Image, ImageCms, PngImagePlugin

from ccs_broker.errors import InvalidImageError, PayloadTooLargeError, UnsupportedMediaError
from ccs_workers.engines.media import ImageLimits, check_image, decode_image
from tests.media_jobs import picture

LIMITS = ImageLimits()
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
ORIENTATION = 0x0112


def decode(data, **settings):
    return decode_image(data, LIMITS, **settings).image


def corners(size=(24, 16)):
    """Red, green, blue and white, from the top left in reading order."""
    image = Image.new("RGB", size)
    width, height = size[0] // 2, size[1] // 2
    for number, color in enumerate((RED, GREEN, BLUE, WHITE)):
        place = (number % 2 * width, number // 2 * height)
        image.paste(color, (*place, place[0] + width, place[1] + height))
    return image


def corner_colors(image):
    """Colors of the four corners, each rounded to full or none."""
    width, height = image.size
    places = ((2, 2), (width - 3, 2), (2, height - 3), (width - 3, height - 3))
    return [tuple(255 * (value > 127) for value in image.getpixel(place)) for place in places]


#: What undoes each orientation, as the EXIF standard describes the stored picture.
STORED_AS = {
    1: lambda image: image,
    2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
}


def exif(orientation):
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("container", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_turned_upright_once(container, orientation):
    upright = corners((48, 32))
    stored = STORED_AS[orientation](upright)
    settings = {"quality": 95, "subsampling": 0} if container == "JPEG" else {}
    if container == "TIFF":
        data = picture(stored, "TIFF", tiffinfo={ORIENTATION: orientation})
    else:
        data = picture(stored, container, exif=exif(orientation), **settings)

    image = decode(data)
    assert image.size == (48, 32)
    assert corner_colors(image) == [RED, GREEN, BLUE, WHITE]
    assert ORIENTATION not in image.getexif()


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientations_that_do_not_exist_change_nothing(orientation):
    data = picture(corners(), "JPEG", exif=exif(orientation))
    assert decode(data).size == (24, 16)


# Pillow warns of some damage; outside of tests such a warning is a line on standard error.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize(
    "damage",
    [
        lambda tags: tags.replace(b"II*\0", b"XX*\0").replace(b"MM\0*", b"XX\0*"),
        lambda tags: tags[:-6],
        lambda tags: tags[:8],
        lambda tags: tags[:6] + bytes(20),
    ],
    ids=["no TIFF header", "cut off", "header only", "zeros"],
)
def test_damaged_exif_is_passed_over(damage):
    data = picture(corners(), "JPEG", exif=damage(exif(6)))
    decoded = decode_image(data, LIMITS)

    assert decoded.image.size == (24, 16)
    np.testing.assert_array_equal(decoded.image, decode(picture(corners(), "JPEG")))


def test_damaged_exif_is_told_as_a_warning():
    data = picture(corners(), "JPEG", exif=exif(6).replace(b"II*\0", b"XX*\0").replace(b"MM\0*", b"XX\0*"))
    assert decode_image(data, LIMITS).warnings == ("EXIF ignored: damaged",)
    assert decode_image(picture(corners(), "JPEG", exif=exif(6)), LIMITS).warnings == ()


@pytest.mark.parametrize("container", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_served_format_is_decoded(container):
    settings = {"lossless": True} if container == "WEBP" else {}
    image = decode(picture(corners((64, 48)), container, **settings))
    assert image.mode == "RGB"
    assert image.size == (64, 48)
    assert corner_colors(image) == [RED, GREEN, BLUE, WHITE]


def gray(mode, values):
    return Image.fromarray(np.array([values], dtype=mode))


@pytest.mark.parametrize(
    ("data", "colors"),
    [
        (picture(Image.new("1", (1, 1), 1)), [WHITE]),
        (picture(gray("u1", [0, 128, 255])), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(Image.new("LA", (1, 1), (0, 0))), [WHITE]),
        (picture(Image.new("LA", (1, 1), (100, 255))), [(100,) * 3]),
        (picture(Image.new("RGBA", (1, 1), (0, 0, 0, 0))), [WHITE]),
        (picture(Image.new("RGBA", (1, 1), (255, 0, 0, 128))), [(255, 127, 127)]),
        (picture(Image.new("RGBA", (1, 1), (9, 8, 7, 255)), "TIFF"), [(9, 8, 7)]),
        (picture(Image.new("CMYK", (1, 1), (0, 255, 255, 0)), "TIFF"), [RED]),
        (picture(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95), [RED] * 8),
        (picture(gray("<u2", [0, 32_768, 65_535])), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("<u2", [0, 32_768, 65_535]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("i4", [0, 128, 255]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("i4", [0, 32_768, 65_535]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("i4", [-100_000, 0, 100_000]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("f4", [0.0, 0.5, 1.0]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("f4", [0.0, 128.0, 255.0]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("f4", [-3.0, 0.0, 3.0]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("f4", [np.nan, 0.5, np.inf]), "TIFF"), [(0,) * 3, (128,) * 3, WHITE]),
        (picture(gray("f4", [np.nan, np.nan]), "TIFF"), [(0,) * 3] * 2),
    ],
    ids=[
        "1", "L", "LA clear", "LA solid", "RGBA clear", "RGBA half", "RGBA TIFF", "CMYK TIFF", "CMYK JPEG",
        "I;16 PNG", "I;16 TIFF", "I of 8 bits", "I of 16 bits", "I of more", "F of 1", "F of 8 bits", "F of more",
        "F not finite", "F of NaN",
    ],
)  # fmt: skip
def test_every_mode_becomes_rgb_on_white(data, colors):
    image = decode(data)
    assert image.mode == "RGB"
    pixels = np.asarray(image)[0].astype(int)
    np.testing.assert_allclose(pixels, np.array(colors), atol=3)


def test_palettes_with_transparency_stand_on_white():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 100, 50, 0, 0, 0])
    image.putdata([0, 1, 2])
    by_index = decode(picture(image, transparency=2))
    by_table = decode(picture(image, transparency=bytes([255, 255, 0])))
    in_gif = decode(picture(image, "GIF", transparency=2))
    for decoded in (by_index, by_table, in_gif):
        assert np.asarray(decoded)[0].tolist() == [[10, 20, 30], [200, 100, 50], [255, 255, 255]]


def test_a_transparent_color_of_an_rgb_png_stands_on_white():
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (4, 5, 6))
    assert np.asarray(decode(picture(image, transparency=(1, 2, 3))))[0].tolist() == [[255] * 3, [4, 5, 6]]


def test_ycbcr_and_lab_become_rgb():
    ycbcr = decode(picture(corners((32, 32)).convert("YCbCr"), "TIFF"))
    assert corner_colors(ycbcr) == [RED, GREEN, BLUE, WHITE]
    to_lab = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    lab = ImageCms.applyTransform(Image.new("RGB", (4, 4), (200, 40, 40)), to_lab)
    np.testing.assert_allclose(np.asarray(decode(picture(lab, "TIFF")))[0, 0], (200, 40, 40), atol=6)


def test_of_an_animation_the_first_frame_is_the_picture():
    frames = [Image.new("RGB", (8, 8), color) for color in (GREEN, RED, BLUE)]
    for container, settings in (("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        data = picture(frames[0], container, save_all=True, append_images=frames[1:], **settings)
        assert decode(data).getpixel((4, 4)) == GREEN, container


def test_large_pictures_are_made_smaller_on_request():
    for container in ("JPEG", "PNG"):
        image = decode(picture(corners((2000, 1000)), container), longest_side=500)
        assert image.size == (500, 250)
        assert corner_colors(image) == [RED, GREEN, BLUE, WHITE]
    assert decode(picture(corners()), longest_side=500).size == (24, 16)


def png_header(width, height, bits=1, color_type=0):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = zlib.compress(bytes((1 + (width * bits + 7) // 8) * height), 9)
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def gif_of(frames):
    image = b"\x21\xf9\x04\x04\0\0\0\0" + b"\x2c\0\0\0\0\x01\0\x01\0\0" + b"\x02\x02\x44\x01\0"
    return b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff" + image * frames + b"\x3b"


def text_bomb():
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "x" * 80_000_000, zip=True)
    return picture(corners(), "PNG", pnginfo=notes)


def webp_claiming(width, height):
    data = bytearray(picture(corners(), "WEBP", lossless=True))
    assert data[12:16] == b"VP8L"
    data[21:25] = struct.pack("<I", (width - 1) | (height - 1) << 14)
    return bytes(data)


def jpeg_cut_in_half():
    noise = np.random.default_rng(1).integers(0, 255, (600, 800, 3), dtype=np.uint8)
    whole = picture(Image.fromarray(noise), "JPEG")
    return whole[: len(whole) // 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: png_header(20_000, 20_000),
        lambda: png_header(12_500, 12_500),
        jpeg_cut_in_half,
        lambda: b"",
        lambda: b"<html>404",
        lambda: gif_of(5_000),
        text_bomb,
        lambda: webp_claiming(16_000, 16_000),
        lambda: picture(corners())[:50],
        lambda: b"\x89PNG\r\n\x1a\n",
        lambda: b"\xff\xd8\xff",
        lambda: np.random.default_rng(2).bytes(5_000),
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
    ids=[
        "400 MP", "156 MP", "half a JPEG", "empty", "HTML", "5000 frames", "text bomb", "256 MP WebP",
        "PNG header", "PNG signature", "JPEG signature", "random", "SVG",
    ],
)  # fmt: skip
def test_bombs_and_broken_files_are_refused_at_no_cost(make):
    data = make()
    decode(picture(corners()))
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    with pytest.raises(InvalidImageError) as caught:
        decode(data)
    assert time.perf_counter() - began < 1
    assert process.memory_info().rss - before < 50e6
    assert type(caught.value) is InvalidImageError
    assert decode(picture(corners())).size == (24, 16)


@pytest.mark.parametrize(
    "data",
    [
        png_header(20_000, 20_000),
        png_header(12_500, 12_500),
        gif_of(5_000),
        webp_claiming(16_000, 16_000),
        b"",
        b"<html>404",
    ],
    ids=["400 MP", "156 MP", "5000 frames", "256 MP WebP", "empty", "HTML"],
)
def test_what_the_header_tells_is_refused_without_decoding(data):
    with pytest.raises(InvalidImageError):
        check_image(data, LIMITS)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%PDF-1.7\n" + bytes(99), "PDF"),
        (b"\0\0\0\x18ftypheic" + bytes(99), "HEIF"),
        (b"%!PS-Adobe-3.0 EPSF", "PostScript"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "WAV"),
    ],
)
def test_formats_that_are_not_served_are_named(data, name):
    with pytest.raises(UnsupportedMediaError, match=name):
        check_image(data, LIMITS)


def test_limits_are_exact():
    data = picture(corners((24, 16)))
    check_image(data, ImageLimits(pixels=384, size_bytes=len(data)))
    with pytest.raises(InvalidImageError, match="24 x 16 pixels are 384; the limit is 383"):
        check_image(data, ImageLimits(pixels=383))
    with pytest.raises(PayloadTooLargeError):
        check_image(data, ImageLimits(size_bytes=len(data) - 1))
    check_image(gif_of(1_000), LIMITS)
    with pytest.raises(InvalidImageError, match="more than 1000 frames"):
        check_image(gif_of(1_001), LIMITS)


def test_pillows_own_limit_stays_as_it_is_and_says_nothing():
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_image(png_header(12_500, 8_000), ImageLimits(pixels=100_000_000))
    assert limit == Image.MAX_IMAGE_PIXELS == 89_478_485
    with pytest.raises(Image.DecompressionBombError):
        Image.open(BytesIO(png_header(20_000, 20_000)))


def test_the_largest_allowed_picture_costs_little_more_than_its_pixels():
    data = png_header(10_000, 5_000, bits=8)
    process = psutil.Process()
    before = process.memory_info().rss
    decoded = decode(data, longest_side=1_000)
    assert decoded.size == (1_000, 500)
    assert process.memory_info().rss - before < 300e6
