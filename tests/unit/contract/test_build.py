"""From submit's arguments, or a plain producer's JSON, to a job: what is taken and what is refused."""

from __future__ import annotations

import base64
import itertools
import json
from hashlib import sha256

import pytest

from ccs_broker.contract import Limits, MediaRef, Modality, QosClass
from ccs_broker.contract.build import MAX_METADATA_DEPTH, build_job, job_from_wire
from ccs_broker.contract.wire import dump_json
from ccs_broker.errors import InvalidInputError, PayloadTooLargeError, UnsupportedMediaError

SECRET = "the-launch-code-is-0000"
PICTURE = b"\x89PNG not really"
SMALL = Limits(text_bytes=20, image_bytes=10, audio_bytes=12, media_bytes=15, metadata_bytes=30)


def build(modality="text", *, limits=None, **options):
    return build_job(modality, options, job_id="j1", **({"limits": limits} if limits else {}))


def from_wire(spec, modality=Modality.TEXT, **more):
    return job_from_wire(spec, job_id="j1", modality_default=modality, **more)


def test_defaults_are_those_of_the_public_interface():
    job = build(prompt="hi").job
    assert (job.id, job.modality, job.prompt, job.qos) == ("j1", "text", "hi", QosClass.STANDARD)
    assert (job.model, job.deadline_s, job.tenant, job.metadata) == (None, None, "default", {})
    sampling = job.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.stop) == (128, 0.0, ())
    assert (sampling.top_p, sampling.top_k, sampling.seed) == (None, None, None)


def test_every_argument_arrives():
    job = build(
        prompt="hi", model="smol", qos="realtime", deadline_s=2.5, tenant="acme", metadata={"a": [1, None]},
        max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=40, repetition_penalty=1.2, seed=3,
        stop=["\n", "END"], num_beams=1,
    ).job  # fmt: skip
    assert (job.model, job.qos, job.deadline_s, job.tenant) == ("smol", QosClass.REALTIME, 2.5, "acme")
    assert job.metadata == {"a": [1, None]}
    assert job.sampling.model_dump() == {
        "max_new_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2, "seed": 3,
        "stop": ("\n", "END"),
    }  # fmt: skip


def test_none_means_not_said():
    nothing = dict.fromkeys(
        (
            "images",
            "audio",
            "model",
            "qos",
            "deadline_s",
            "tenant",
            "metadata",
            "max_new_tokens",
            "seed",
            "stop",
        )
    )
    assert build(prompt="hi", **nothing).job == build(prompt="hi").job


def test_one_stop_string_is_not_taken_for_its_letters():
    assert build(prompt="hi", stop="END").job.sampling.stop == ("END",)


def test_media_become_references_and_bytes_to_upload():
    built = build("vision", prompt="what?", images=[PICTURE, bytearray(PICTURE), memoryview(b"other")])
    digest = sha256(PICTURE).hexdigest()
    assert [image.sha256 for image in built.job.images] == [digest, digest, sha256(b"other").hexdigest()]
    assert [image.size_bytes for image in built.job.images] == [len(PICTURE), len(PICTURE), 5]
    assert built.blobs == {digest: PICTURE, sha256(b"other").hexdigest(): b"other"}


def test_one_medium_by_itself_is_a_list_of_one():
    assert len(build("vision", images=PICTURE).job.images) == 1
    assert len(build("audio", audio=[PICTURE]).job.audio) == 1


def test_a_fusion_job_takes_them_all_in_order():
    job = build("fusion", prompt="p", images=[b"1", b"2"], audio=[b"3"]).job
    assert [part.type for part in job.parts] == ["text", "image", "image", "audio"]


def test_data_urls_are_decoded():
    plain = base64.b64encode(PICTURE).decode()
    for url in (f"data:image/png;base64,{plain}", f"DATA:;BASE64,{plain[:4]}\n{plain[4:]}"):
        assert list(build("vision", images=[url]).blobs.values()) == [PICTURE]
    assert list(build("audio", audio="data:text/plain,a%20b").blobs.values()) == [b"a b"]


def test_a_stored_medium_needs_no_bytes():
    reference = MediaRef(sha256="a" * 64, size_bytes=5)
    built = build("vision", images=[reference, {"sha256": "b" * 64, "size_bytes": 6}])
    assert [image.sha256[0] for image in built.job.images] == ["a", "b"]
    assert not built.blobs


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x", "https://example.org/x.png", "HTTP://2130706433/", "ftp://host/x", "s3://bucket/x",
        "file:///etc/hostname", "file:/etc/hostname", "http://[::1]/x", "http://169.254.169.254/latest",
    ],
)  # fmt: skip
def test_urls_are_not_fetched(url):
    for options in ({"images": [url]}, {"audio": url}):
        with pytest.raises(UnsupportedMediaError, match="URLs are not fetched") as caught:
            build("fusion", prompt="p", **options)
        assert url not in str(caught.value)


@pytest.mark.parametrize(
    ("modality", "options", "told"),
    [
        ("txt", {"prompt": "p"}, "modality: should be one of text, vision, audio, fusion"),
        (["text"], {"prompt": "p"}, "modality: should be one of"),
        ("text", {"prompt": "p", "qos": "urgent"}, "qos: should be one of realtime, interactive, standard"),
        ("text", {}, "a text job needs a prompt that is not empty"),
        ("text", {"prompt": ""}, "a text job needs a prompt that is not empty"),
        ("text", {"prompt": b"p"}, "prompt: should be a string, not bytes"),
        ("text", {"prompt": "p\ud800"}, "prompt: is not valid Unicode"),
        ("text", {"prompt": "p", "images": [PICTURE]}, "a text job takes no images and no audio"),
        ("vision", {"prompt": "p"}, "a vision job needs at least one image"),
        ("vision", {"images": []}, "a vision job needs at least one image"),
        ("vision", {"images": 5}, "images: should be a medium or a list of them, not int"),
        ("vision", {"images": [5]}, r"images\[0\]: should be a path, bytes, .* not int"),
        ("vision", {"images": [PICTURE, b""]}, r"images\[1\]: is empty"),
        ("vision", {"images": ["data:image/png;base64"]}, r"images\[0\]: a data: URL without a comma"),
        ("vision", {"images": ["data:;base64,?!%&"]}, r"images\[0\]: is not base64"),
        ("vision", {"images": [{"sha256": "xyz", "size_bytes": 1}]}, r"images\[0\]: sha256: should be 64 hex"),
        ("audio", {"prompt": "p"}, "an audio job needs exactly one audio part"),
        ("audio", {"audio": [b"1", b"2"]}, "an audio job needs exactly one audio part"),
        ("fusion", {"prompt": "p"}, "a fusion job needs at least two parts"),
        ("text", {"prompt": "p", "num_beams": 4}, "num_beams: beam search is not served"),
        ("text", {"prompt": "p", "max_tokens": 4}, "unknown argument 'max_tokens'; known: audio, "),
        ("text", {"prompt": "p", "max_new_tokens": 0}, "max_new_tokens: .* 1 to 32768, not a smaller one"),
        ("text", {"prompt": "p", "max_new_tokens": True}, "should be a whole number .* not true or false"),
        ("text", {"prompt": "p", "temperature": float("nan")}, "should be a number from 0 to 10, not infinity"),
        ("text", {"prompt": "p", "repetition_penalty": float("nan")}, "should be a number from 0.1 to 10"),
        ("text", {"prompt": "p", "repetition_penalty": 0}, "should be a number from 0.1 to 10"),
        ("text", {"prompt": "p", "repetition_penalty": 11}, "should be a number from 0.1 to 10"),
        ("text", {"prompt": "p", "deadline_s": 0}, "deadline_s: should be a number above 0 and"),
        ("text", {"prompt": "p", "deadline_s": 1e9}, "and at most 604800, not a larger one"),
        ("text", {"prompt": "p", "tenant": "a b"}, "tenant: should be 1 to 128 letters, digits"),
        ("text", {"prompt": "p", "stop": ["x"] * 17}, "stop: should be a list of at most 16 items"),
        ("text", {"prompt": "p", "metadata": [1]}, "metadata: should be an object, not list"),
        ("text", {"prompt": "p", "metadata": {"a": {1, 2}}}, "metadata: holds what JSON can't carry"),
        ("text", {"prompt": "p", "metadata": {"a": float("inf")}}, "metadata: holds what JSON can't carry"),
        ("text", {"prompt": "p", "metadata": {"a": "\ud800"}}, "metadata: holds what JSON can't carry"),
    ],
)  # fmt: skip
def test_bad_arguments_are_told_by_field_and_rule(modality, options, told):
    with pytest.raises(InvalidInputError, match=told):
        build(modality, **options)


@pytest.mark.parametrize(
    ("modality", "options", "limit"),
    [
        ("text", {"prompt": "x" * 21}, "prompt: 21 bytes of UTF-8 are over the limit text_bytes of 20"),
        ("text", {"prompt": "é" * 11}, "prompt: 22 bytes of UTF-8 are over the limit text_bytes of 20"),
        ("vision", {"images": [b"1" * 11]}, r"images\[0\]: 11 bytes are over the limit image_bytes of 10"),
        ("audio", {"audio": b"1" * 13}, "audio: 13 bytes are over the limit audio_bytes of 12"),
        ("vision", {"images": [b"1" * 8, b"2" * 8]}, r"images\[1\]: 8 bytes are over .* media_bytes .* of 7"),
        ("vision", {"images": ["data:;base64," + "AAAA" * 4]}, r"images\[0\]: 12 bytes are over the limit"),
        ("vision", {"images": ["data:," + "A" * 40]}, r"images\[0\]: 14 bytes are over the limit"),
        ("vision", {"images": [{"sha256": "a" * 64, "size_bytes": 11}]}, r"images\[0\]: 11 bytes are over"),
        ("text", {"prompt": "p", "metadata": {"k": "x" * 30}}, "metadata: 38 bytes of JSON are over"),
        ("vision", {"images": itertools.repeat(b"x")}, "images and audio: more than 63 media in one job"),
    ],
)  # fmt: skip
def test_sizes_over_a_limit_name_the_limit(modality, options, limit):
    with pytest.raises(PayloadTooLargeError, match=limit):
        build(modality, limits=SMALL, **options)


def test_metadata_may_be_as_deep_as_every_reader_can_follow():
    def nested(levels):
        value = {}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    job = build(prompt="p", metadata=nested(MAX_METADATA_DEPTH)).job
    assert type(job).model_validate_json(dump_json(job)) == job
    with pytest.raises(InvalidInputError, match="nested deeper"):
        build(prompt="p", metadata=nested(MAX_METADATA_DEPTH + 2))


def test_metadata_that_holds_itself_is_refused_and_not_walked_for_ever():
    looped = {}
    looped |= {"a": looped}
    with pytest.raises(InvalidInputError, match="nested deeper"):
        build(prompt="p", metadata=looped)
    looped["b"] = looped
    with pytest.raises(PayloadTooLargeError, match="metadata_bytes"):
        build(prompt="p", metadata=looped)


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": "p", "model": SECRET + " !"},
        {"prompt": "p", "qos": SECRET},
        {"prompt": "p", "stop": [SECRET, 5]},
        {"prompt": "p", "temperature": SECRET},
        {"prompt": "p", "metadata": {SECRET: {"x": object()}}},
        {"prompt": [SECRET]},
        {"images": [SECRET]},
        {"images": ["data:;base64," + SECRET]},
        {"images": [{"sha256": SECRET, "size_bytes": 1}]},
        {"audio": {"base64": SECRET}},
    ],
)
def test_an_error_never_holds_the_value_nor_chains_one_that_does(options):
    with pytest.raises(InvalidInputError) as caught:
        build("fusion", **options)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_plain_producers_arguments_make_the_same_job():
    spec = json.loads(
        json.dumps({"prompt": "hi", "max_new_tokens": 5, "seed": None, "stop": "END", "new_field": 1})
    )
    job, blobs = from_wire(spec, qos_default=QosClass.BATCH)
    assert job == build(prompt="hi", max_new_tokens=5, stop="END", qos="batch").job
    assert blobs == {}


def test_a_plain_producers_media_are_base64_or_references():
    spec = {
        "prompt": "what?",
        "images": [
            {"base64": base64.b64encode(PICTURE).decode()},
            {"sha256": "a" * 64, "size_bytes": 9},
            "data:image/png;base64," + base64.b64encode(b"third").decode(),
        ],
    }
    job, blobs = from_wire(spec, Modality.VISION)
    assert [image.size_bytes for image in job.images] == [len(PICTURE), 9, 5]
    assert sorted(blobs.values()) == sorted([PICTURE, b"third"])


@pytest.mark.parametrize("path", ["/etc/hostname", "picture.png", "C:\\x.png", ""])
def test_a_path_over_the_wire_reads_no_file(path):
    with pytest.raises(UnsupportedMediaError, match="files are read by the client only"):
        from_wire({"images": [path]}, Modality.VISION)


def test_a_whole_job_over_the_wire_keeps_its_body_and_gets_the_messages_id():
    job = build("vision", prompt="p", images=[PICTURE], qos="realtime", metadata={"a": None}).job
    found, blobs = from_wire(
        {**json.loads(dump_json(job)), "id": "other", "later_field": {}}, Modality.VISION
    )
    assert found == job
    assert blobs == {}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ([], "a job should be a JSON object"),
        ("prompt", "a job should be a JSON object"),
        (None, "a job should be a JSON object"),
        ({1: 2}, "a job should be a JSON object"),
        ({"prompt": "p", "v": 2}, "v: this reader knows wire version 1, not a higher one"),
        ({"parts": [{"type": "text", "text": "p"}], "v": 2}, "v: this reader knows wire version 1"),
        (
            {"parts": [{"type": "video", "text": SECRET}]},
            r"parts\[0\]: the type should be one of text, image, audio",
        ),
        (
            {"parts": [{"type": "text", "text": 5}]},
            r"parts\[0\].text: should be a string, not a whole number",
        ),
        ({"parts": []}, "parts: should be a list of 1 to 64 items, not a shorter one"),
        ({"parts": SECRET}, "parts: should be a list of 1 to 64 items, not a string"),
        ({"prompt": "p", "modality": SECRET}, "modality: should be one of"),
        ({"prompt": "p", "num_beams": 2}, "num_beams"),
    ],
)
def test_bad_json_over_the_wire_is_told_without_its_values(spec, told):
    with pytest.raises(InvalidInputError, match=told) as caught:
        from_wire(spec)
    assert SECRET not in str(caught.value)


def test_a_whole_job_is_held_to_the_same_limits():
    text = {"type": "text", "text": "x" * 12}
    image = {"type": "image", "media": {"sha256": "a" * 64, "size_bytes": 9}}
    for spec, modality, limit in (
        ({"parts": [text, text]}, Modality.TEXT, "text_bytes"),
        ({"parts": [image, image]}, Modality.VISION, "media_bytes"),
        (
            {"parts": [{**image, "media": {"sha256": "a" * 64, "size_bytes": 11}}]},
            Modality.VISION,
            "image_bytes",
        ),
        ({"parts": [text], "metadata": {"k": "x" * 30}}, Modality.TEXT, "metadata_bytes"),
    ):
        with pytest.raises(PayloadTooLargeError, match=limit):
            from_wire(spec, modality, limits=SMALL)
