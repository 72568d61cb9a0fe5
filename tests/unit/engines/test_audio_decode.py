"""Sound from any container becomes mono float32 at 16 kHz; what isn't whole, sane sound is refused."""

from __future__ import annotations

import struct

import numpy as np
import psutil
import pytest

from ccs_broker.errors import (
    AudioTooLongError,
    InvalidAudioError,
    PayloadTooLargeError,
    UnsupportedMediaError,
)
from ccs_workers.engines.media import RATE_HZ, AudioLimits, AudioReader, check_audio, resample
from ccs_workers.engines.media.mp3 import with_true_length
from tests.media_jobs import encode, noise, tone

LIMITS = AudioLimits()
CONTAINERS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_24"),
    ("WAV", "PCM_32"),
    ("WAV", "PCM_U8"),
    ("WAV", "FLOAT"),
    ("WAV", "DOUBLE"),
    ("WAV", "ULAW"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("MP3", "MPEG_LAYER_III"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("W64", "PCM_16"),
    ("RF64", "PCM_16"),
]


def decode(data, limits=LIMITS):
    """Everything in a sound, at 16 kHz."""
    with AudioReader(data, limits) as reader:
        samples = reader.read(1 << 40)
        assert len(reader.read(1)) == 0
        reader.check_end()
        return resample(samples, reader.rate_hz)


def dominant_hz(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return np.argmax(spectrum) * RATE_HZ / len(samples)


@pytest.mark.parametrize(("container", "subtype"), CONTAINERS)
def test_every_container_gives_the_same_sound(container, subtype):
    samples = decode(encode(tone(1.5, 44_100), 44_100, container, subtype=subtype))

    assert samples.dtype == np.float32
    assert samples.shape == (24_000,)
    assert dominant_hz(samples) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_056, 44_100, 48_000, 96_000, 192_000])
def test_every_rate_is_brought_to_16_khz(rate_hz):
    samples = decode(encode(tone(2.0, rate_hz), rate_hz))

    assert abs(len(samples) - 32_000) <= 1
    assert dominant_hz(samples) == pytest.approx(440, abs=2)


def test_what_16_khz_cannot_carry_does_not_come_back_as_another_tone():
    samples = decode(encode(tone(1.0, 48_000, hz=11_000), 48_000))
    assert np.abs(samples[800:-800]).max() < 0.01


@pytest.mark.parametrize("rate_hz", [500, 450_000])
def test_rates_beyond_all_sense_are_refused(rate_hz):
    with pytest.raises(UnsupportedMediaError, match=f"{rate_hz} Hz"):
        check_audio(encode(np.zeros(1000, np.float32), rate_hz), LIMITS)


def test_stereo_is_averaged_across_channels_not_across_time():
    left = tone(1.0)
    samples = decode(encode(np.stack([left, np.zeros_like(left)], axis=1)))

    assert samples.shape == (16_000,)
    np.testing.assert_allclose(samples, left / 2, atol=1 / 32_000)


def test_six_channels_are_averaged_too():
    channels = np.stack([tone(0.5, hz=hz) for hz in (300, 400, 500, 600, 700, 800)], axis=1)
    samples = decode(encode(channels, subtype="FLOAT"))
    np.testing.assert_allclose(samples, channels.mean(axis=1), atol=1e-6)


def test_one_channel_with_its_own_axis_is_mono():
    samples = decode(encode(tone(0.5)[:, None], subtype="FLOAT"))
    np.testing.assert_array_equal(samples, tone(0.5))


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_integers_at_full_scale_equal_floats_at_full_scale(dtype):
    sound = tone(0.5, level=1.0)
    top = np.iinfo(dtype).max
    integers = (sound.astype(np.float64) * top).astype(dtype)
    subtype = "PCM_16" if dtype == np.int16 else "PCM_32"

    np.testing.assert_allclose(
        decode(encode(integers, subtype=subtype)), decode(encode(sound, subtype="FLOAT")), atol=2 / 32_767
    )


def test_floats_on_the_scale_of_integers_are_refused():
    with pytest.raises(InvalidAudioError, match="where full scale is 1"):
        decode(encode(tone(0.5, level=32_767.0), subtype="FLOAT"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_numbers_are_refused(value):
    sound = tone(0.5)
    sound[4321] = value
    with pytest.raises(InvalidAudioError, match="aren't numbers"):
        decode(encode(sound, subtype="FLOAT"))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidAudioError),
        (b"<html>404 Not Found</html>", InvalidAudioError),
        (b"\n <!DOCTYPE html><html>" + b"x" * 3000, InvalidAudioError),
        (b"hello world " * 100, UnsupportedMediaError),
        (b"%PDF-1.7 " * 100, UnsupportedMediaError),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), UnsupportedMediaError),
        (b"\0\0\0\x20ftypM4A " + bytes(2000), UnsupportedMediaError),
        (bytes(1000), UnsupportedMediaError),
        (np.random.default_rng(3).bytes(5000), UnsupportedMediaError),
        (encode(np.zeros(0, np.float32)), InvalidAudioError),
    ],
    ids=["empty", "html", "doctype", "text", "pdf", "png", "m4a", "zeros", "random", "no samples"],
)
def test_what_is_not_sound_is_refused_by_its_header(data, error):
    with pytest.raises(error) as caught:
        check_audio(data, LIMITS)
    assert type(caught.value) is error


@pytest.mark.parametrize("part", [0.02, 0.5, 0.9, 0.97])
@pytest.mark.parametrize(("container", "subtype"), [c for c in CONTAINERS if c[1] not in ("ULAW", "DOUBLE")])
def test_sound_that_is_cut_off_is_refused(container, subtype, part):
    whole = encode(noise(3.0, 44_100), 44_100, container, subtype=subtype)
    with pytest.raises((InvalidAudioError, UnsupportedMediaError)) as caught:
        decode(whole[: int(len(whole) * part)])
    assert part < 0.1 or isinstance(caught.value, InvalidAudioError)


@pytest.mark.parametrize("size", [0xFFFF_FFFF, 0x7FFF_F000, 0x7FFF_FFFF])
def test_wav_written_to_a_pipe_is_whole_though_its_header_knows_no_length(size):
    data = bytearray(encode(tone(1.0)))
    data[4:8] = data[40:44] = struct.pack("<I", size)
    assert len(decode(bytes(data))) == 16_000


def test_wav_whose_header_was_never_completed_is_refused():
    data = bytearray(encode(tone(1.0)))
    data[40:44] = struct.pack("<I", 0)
    with pytest.raises(InvalidAudioError, match="no samples"):
        check_audio(bytes(data), LIMITS)


def _frames_of_mp3(data):
    """An MP3 without its first frame, which tells how many follow."""
    size = 144 * (0, 32, 40, 48, 56, 64, 80, 96, 112, 128)[data[2] >> 4] * 1000 // 44_100
    assert data[size : size + 2] == data[:2]
    return data[size:]


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_mp3_is_read_to_its_end_without_a_length_in_its_header(mode):
    # Quiet at first and loud later: a guess from the first frames falls far short.
    sound = np.concatenate([noise(1.0, 44_100, dbfs=-70), noise(9.0, 44_100)])
    data = _frames_of_mp3(encode(sound, 44_100, "MP3", bitrate_mode=mode, compression_level=0.7))
    assert len(decode(data)) == pytest.approx(160_000, abs=2000)


@pytest.mark.parametrize("tag", [b"", b"ID3\x03\0\0\0\0\0\x0a" + bytes(10)], ids=["bare", "ID3"])
def test_mp3_files_joined_to_one_are_read_to_the_end(tag):
    one = tag + encode(noise(2.0, 44_100), 44_100, "MP3")
    assert len(decode(one * 3)) == pytest.approx(96_000, abs=2500)


def test_mp3_with_a_right_header_is_left_alone():
    data = encode(noise(5.0, 44_100), 44_100, "MP3", bitrate_mode="VARIABLE")
    assert with_true_length(data, 5 * 44_100) is data


def test_ogg_with_several_sounds_is_refused_rather_than_read_in_part():
    one = encode(noise(1.0, 44_100), 44_100, "OGG")
    with pytest.raises(InvalidAudioError, match="several sounds"):
        check_audio(one * 2, LIMITS)


def test_length_is_checked_before_anything_is_decoded():
    flac = bytearray(encode(np.zeros(8_000, np.float32), 8_000, "FLAC"))
    # STREAMINFO: the low 32 of the 36 bits that count samples; two hours of them.
    flac[22:26] = struct.pack(">I", 2 * 3600 * 8_000)
    with pytest.raises(AudioTooLongError, match=r"7200\.0 s of sound; the limit is 3600 s"):
        check_audio(bytes(flac), LIMITS)


def test_length_up_to_the_limit_is_allowed():
    sound = encode(tone(2.0))
    check_audio(sound, AudioLimits(duration_s=2.0))
    with pytest.raises(AudioTooLongError):
        check_audio(sound, AudioLimits(duration_s=1.99))


def test_size_is_limited_in_bytes():
    sound = encode(tone(1.0))
    check_audio(sound, AudioLimits(size_bytes=len(sound)))
    with pytest.raises(PayloadTooLargeError, match=str(len(sound) - 1)):
        check_audio(sound, AudioLimits(size_bytes=len(sound) - 1))


def test_memory_does_not_grow_with_the_length():
    sound = encode(np.zeros((20 * 60 * 48_000, 2), np.int16), 48_000, "FLAC")
    process = psutil.Process()
    before = process.memory_info().rss
    seconds, peak = 0, before
    with AudioReader(sound, LIMITS) as reader:
        while samples := len(reader.read(30 * reader.rate_hz)):
            seconds += samples / reader.rate_hz
            peak = max(peak, process.memory_info().rss)
    assert seconds == 1200
    assert peak - before < 50e6


def test_parts_and_skips_join_without_a_seam():
    sound = noise(1.0)
    with AudioReader(encode(sound, subtype="FLOAT"), LIMITS) as reader:
        first = reader.read(5_000)
        reader.skip(3_000)
        rest = reader.read(16_000)
    np.testing.assert_array_equal(first, sound[:5_000])
    np.testing.assert_array_equal(rest, sound[8_000:])
