"""From a wish to a device: each kind of wish, what hides devices, and what a refusal says."""

from __future__ import annotations

import pytest

from ccs_broker.errors import ConfigurationError
from ccs_workers.devices import find_device
from tests.nvml_stub import GIB, Question, gpu

FOUR = [
    gpu("GPU-aa00", used=60 * GIB),
    gpu("GPU-ab11", used=20 * GIB),
    gpu("GPU-cc22", used=5 * GIB),
    gpu("GPU-dd33", used=40 * GIB),
]


WISHES = [
    ("auto", None, "GPU-cc22"),
    ("cuda", None, "GPU-cc22"),
    ("auto", "3,0", "GPU-dd33"),
    ("cuda", "0", "GPU-aa00"),
    ("cuda:0", None, "GPU-aa00"),
    ("cuda:3", None, "GPU-dd33"),
    ("cuda:0", "2,3", "GPU-cc22"),
    ("cuda:1", "2,3", "GPU-dd33"),
    ("cuda:1", "GPU-dd,GPU-ab", "GPU-ab11"),
    ("GPU-ab11", None, "GPU-ab11"),
    ("GPU-d", None, "GPU-dd33"),
    ("GPU-d", "3,0", "GPU-dd33"),
    # Only one of those that are visible begins so.
    ("GPU-a", "1,2", "GPU-ab11"),
]
REFUSALS = [
    ("cuda:4", None, "there is no cuda:4: CUDA sees cuda:0 to cuda:3"),
    ("cuda:2", "2,3", "there is no cuda:2: CUDA sees cuda:0 to cuda:1 (CUDA_VISIBLE_DEVICES='2,3')"),
    ("cuda:1", "0,9,1", "there is no cuda:1: CUDA sees cuda:0 to cuda:0 (CUDA_VISIBLE_DEVICES='0,9,1')"),
    (
        "cuda",
        "",
        "no device for 'cuda': CUDA_VISIBLE_DEVICES='' shows none of 4 GPUs; --device cpu needs none",
    ),
    (
        "cuda:0",
        "0,0",
        "no device for 'cuda:0': CUDA_VISIBLE_DEVICES='0,0' shows none of 4 GPUs; --device cpu needs none",
    ),
    ("GPU-a", None, "GPU-a begins the UUID of 2 devices; write more of it"),
    ("GPU-ab", "0", "GPU-ab is hidden by CUDA_VISIBLE_DEVICES='0'; add it there"),
    ("GPU-ff", "0,1", "there is no device GPU-ff; CUDA sees GPU-aa00, GPU-ab11"),
    ("MIG-1", None, "there is no device MIG-1; CUDA sees GPU-aa00, GPU-ab11, GPU-cc22, GPU-dd33"),
]


def asked(wish, listed, gpus=FOUR):
    return Question(gpus=gpus, wish=wish, environ={} if listed is None else {"CUDA_VISIBLE_DEVICES": listed})


def test_wishes(stub, tmp_path):
    answers = stub.ask(tmp_path, *(asked(wish, listed) for wish, listed, _ in WISHES))
    found = [(wish, listed, answer.uuid) for (wish, listed, _), answer in zip(WISHES, answers, strict=True)]
    assert found == WISHES


def test_refusals_say_what_to_do(stub, tmp_path):
    answers = stub.ask(tmp_path, *(asked(wish, listed) for wish, listed, _ in REFUSALS))
    found = [
        (wish, listed, answer.error) for (wish, listed, _), answer in zip(REFUSALS, answers, strict=True)
    ]
    assert found == REFUSALS


@pytest.mark.parametrize(
    "wish", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:0,1", "GPU-", "GPU-a\n", "mps"]
)
def test_words_that_are_no_wish(wish):
    with pytest.raises(
        ConfigurationError, match="device must be auto, cpu, cuda, cuda:N, GPU-<uuid> or MIG-<uuid>"
    ):
        find_device(wish, {})


def test_auto_is_the_cpu_where_no_gpu_is_to_be_seen(stub, tmp_path):
    undivided = [gpu("GPU-a", mig="1")]
    none, hidden, empty = stub.ask(
        tmp_path,
        Question(gpus=[], wish="auto"),
        Question(gpus=FOUR, wish="auto", environ={"CUDA_VISIBLE_DEVICES": "-1"}),
        Question(gpus=undivided, wish="auto"),
    )
    for answer, reason in (
        (none, "NVML lists no GPU"),
        (hidden, "CUDA_VISIBLE_DEVICES='-1' shows none of 4 GPUs"),
        (empty, "none has an instance"),
    ):
        assert answer.device["name"] == "cpu"
        assert answer.device["visible"] == ""
        assert any(line.startswith("INFO running on the CPU") and reason in line for line in answer.logged)


def test_auto_prefers_what_is_known_to_be_free(stub, tmp_path):
    silent = ["fail nvmlDeviceGetMemoryInfo 3 GPU-cc22", "fail nvmlDeviceGetMemoryInfo_v2 3 GPU-cc22"]
    known, only = stub.ask(
        tmp_path,
        Question(gpus=[*FOUR, *silent], wish="auto"),
        Question(gpus=[*FOUR, *silent], wish="auto", environ={"CUDA_VISIBLE_DEVICES": "2"}),
    )
    assert known.uuid == "GPU-ab11"
    assert only.uuid == "GPU-cc22"
    assert any("free memory unknown" in line for line in only.logged)


def test_a_count_that_cuda_may_make_otherwise_is_warned_of(stub, tmp_path):
    mixed = [gpu("GPU-a", model="NVIDIA T4"), gpu("GPU-b", model="NVIDIA H100")]
    by_bus, by_uuid = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    answers = stub.ask(
        tmp_path,
        Question(gpus=mixed, wish="cuda:0"),
        Question(gpus=mixed, wish="cuda:0", environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}),
        Question(gpus=mixed, wish="cuda:0", environ={"CUDA_VISIBLE_DEVICES": "1,0"}),
        Question(gpus=mixed, wish="cuda:0", environ=by_bus),
        Question(gpus=mixed, wish="cuda:0", environ=by_uuid),
        Question(gpus=mixed, wish="GPU-a"),
        Question(gpus=FOUR, wish="cuda:0"),
    )
    warned = [any("PCI bus" in line for line in answer.logged) for answer in answers]
    assert warned == [True, True, True, False, False, False, False]
    assert [answer.uuid for answer in answers[:5]] == ["GPU-a", "GPU-a", "GPU-b", "GPU-a", "GPU-b"]


def test_without_nvml_the_list_is_still_honored(stub, tmp_path):
    wishes = [
        ("cuda", None),
        ("cuda:2", None),
        ("cuda:1", "GPU-ab,GPU-cc"),
        ("GPU-ab11", None),
        ("GPU-ab11", "GPU-ab"),
        ("MIG-7", "0"),
        ("cuda", ""),
        ("cuda:2", "0,1"),
        ("GPU-ab11", "GPU-cc"),
    ]
    dead = [*FOUR, "fail nvmlInitWithFlags 9"]
    answers = stub.ask(tmp_path, *(asked(wish, listed, dead) for wish, listed in wishes))
    visible = [answer.device.get("visible") for answer in answers]
    assert visible == ["0", "2", "GPU-cc", "GPU-ab11", "GPU-ab11", "MIG-7", None, None, None]
    assert all("add it there, or name another device" in answer.error for answer in answers[6:])


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_device("auto").name == "cpu"
