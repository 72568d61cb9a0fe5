"""Memory of CUDA devices, through pynvml's own C interface and a stub of the library behind it."""

from __future__ import annotations

import pytest

from tests.nvml_stub import GIB, Question, gpu, instance, process

#: Each error that NVML's calls are known to give on machines that are in order otherwise, and one it doesn't define.
ERRORS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    17: "operating system",
    18: "mismatch",
    20: "Insufficient Memory",
    25: "error 25",
    999: "Unknown Error",
    4711: "error 4711",
}
RUNNING = "nvmlDeviceGet{}RunningProcesses_v{}"
OWN = 4242
BUSY = [
    gpu("GPU-busy", used=50 * GIB, reserved=GIB),
    process(OWN, 20 * GIB),
    process(7, 29 * GIB),
    gpu("GPU-idle", used=10 * GIB, reserved=GIB),
    process(OWN, 4 * GIB),
]


def failing(machine, *functions, code, uuid=""):
    return [*machine, *(f"fail {function} {code} {uuid}" for function in functions)]


def test_two_gpus_with_our_processes_and_others(stub, tmp_path):
    first, second, alone = stub.ask(
        tmp_path,
        Question(gpus=BUSY, wish="cuda:0", own_pids=(OWN,)),
        Question(gpus=BUSY, wish="cuda:1", own_pids=(OWN,)),
        Question(gpus=BUSY, wish="cuda:0"),
    )
    # What the driver keeps is nobody's to have: it is no part of the total.
    assert first.memory == (79 * GIB, 50 * GIB, 30 * GIB)
    assert first.reading["by_pid"] == {str(OWN): 20 * GIB}
    assert first.reading["free_bytes"] == 29 * GIB
    assert second.memory == (79 * GIB, 10 * GIB, 6 * GIB)
    assert alone.memory == (79 * GIB, 50 * GIB, 50 * GIB)
    for answer, uuid in ((first, "GPU-busy"), (second, "GPU-idle")):
        # Alone in its process, and named so that CUDA's way to count can't matter.
        assert answer.device == {"name": "cuda:0", "uuid": uuid, "kind": "cuda", "visible": uuid}
        assert answer.reading["reason"] == ""


def test_a_process_in_several_lists_or_contexts_counts_once_and_whole(stub, tmp_path):
    machine = [
        gpu("GPU-a", used=20 * GIB),
        process(OWN, 3 * GIB),
        process(OWN, 2 * GIB),
        process(OWN, 5 * GIB, "graphics"),
        process(OWN + 1, 4 * GIB, "mps"),
        process(OWN + 2, GIB, "graphics"),
    ]
    (answer,) = stub.ask(tmp_path, Question(gpus=machine, own_pids=(OWN, OWN + 1, OWN + 2)))
    assert answer.reading["by_pid"] == {str(OWN): 5 * GIB, str(OWN + 1): 4 * GIB, str(OWN + 2): GIB}
    assert answer.memory == (80 * GIB, 20 * GIB, 10 * GIB)


def test_what_our_processes_use_is_never_taken_for_zero_where_it_is_not_told(stub, tmp_path):
    untold = [gpu("GPU-a", used=20 * GIB), process(OWN, None), process(7, None)]
    empty = [gpu("GPU-a", used=20 * GIB)]
    hidden, told_to_none, loading, contained = stub.ask(
        tmp_path,
        Question(gpus=untold, own_pids=(OWN,)),
        Question(gpus=[*untold, process(OWN + 1, GIB)], own_pids=(OWN + 1,)),
        Question(gpus=empty, own_pids=(OWN,)),
        Question(gpus=empty, own_pids=(OWN,), every_process=False),
    )
    assert hidden.memory == (80 * GIB, 20 * GIB, None)
    assert hidden.reading["by_pid"] == {}
    assert str(OWN) in hidden.reading["reason"]
    # What others use apiece needn't be known.
    assert told_to_none.memory == (80 * GIB, 20 * GIB, 19 * GIB)
    # On the machine itself NVML lists all processes: one it doesn't list uses nothing. In a container it may.
    assert loading.memory == (80 * GIB, 20 * GIB, 20 * GIB)
    assert contained.memory == (80 * GIB, 20 * GIB, None)
    assert "container" in contained.reading["reason"]


def test_our_share_never_makes_that_of_others_negative(stub, tmp_path):
    machine = [gpu("GPU-a", used=2 * GIB), process(OWN, 3 * GIB)]
    (answer,) = stub.ask(tmp_path, Question(gpus=machine, own_pids=(OWN,)))
    assert answer.memory == (80 * GIB, 2 * GIB, 0)


def test_mig_instances_are_devices_with_memory_of_their_own(stub, tmp_path):
    machine = [
        gpu("GPU-a", used=12 * GIB, mig="1"),
        instance("MIG-a1", used=9 * GIB),
        process(OWN, 8 * GIB),
        "empty",
        instance("MIG-a2", used=3 * GIB, total=20 * GIB),
        gpu("GPU-b", used=75 * GIB, mig="0"),
    ]
    auto, first, third, named, whole = stub.ask(
        tmp_path,
        Question(gpus=machine, wish="auto"),
        Question(gpus=machine, wish="cuda:0", own_pids=(OWN,)),
        Question(gpus=machine, wish="cuda:2"),
        Question(gpus=machine, wish="MIG-a1"),
        Question(gpus=machine, wish="GPU-a"),
    )
    assert (auto.uuid, auto.memory) == ("MIG-a2", (20 * GIB, 3 * GIB, 3 * GIB))
    assert (first.uuid, first.memory) == ("MIG-a1", (10 * GIB, 9 * GIB, GIB))
    assert first.device["visible"] == "MIG-a1"
    assert first.device["name"] == "cuda:0"
    assert (third.uuid, named.uuid) == ("GPU-b", "MIG-a1")
    assert whole.error == "GPU-a is in MIG mode; name one of its instances: MIG-a1, MIG-a2"


def test_memory_is_unknown_with_a_reason_whatever_error_its_calls_give(stub, tmp_path):
    memory = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
    kinds = [memory, ("nvmlDeviceGetHandleByUUID",)]
    asked = [
        (
            text,
            Question(gpus=BUSY, own_pids=(OWN,), wish="cuda:0", later=failing(BUSY, *functions, code=code)),
        )
        for functions in kinds
        for code, text in ERRORS.items()
    ]
    for (text, _), answer in zip(
        asked, stub.ask(tmp_path, *(question for _, question in asked)), strict=True
    ):
        assert answer.memory == (None, None, None)
        assert answer.reading["free_bytes"] is None
        assert text in answer.reading["reason"]
        assert answer.uuid == "GPU-busy"


def test_old_drivers_know_older_forms_of_the_calls(stub, tmp_path):
    new = (
        "nvmlDeviceGetMemoryInfo_v2",
        *(RUNNING.format(kind, 3) for kind in ("Compute", "MPSCompute", "Graphics")),
    )
    answers = stub.ask(
        tmp_path,
        *(
            Question(gpus=failing(BUSY, *new, code=code), wish="cuda:0", own_pids=(OWN,))
            for code in (2, 3, 13, 25, 999)
        ),
    )
    for answer in answers:
        # There the driver's own part counts as used: the room is the same.
        assert answer.memory == (80 * GIB, 51 * GIB, 31 * GIB)
        assert answer.reading["free_bytes"] == 29 * GIB


def test_others_are_unknown_if_the_list_of_processes_fails(stub, tmp_path):
    functions = [RUNNING.format("Compute", version) for version in (3, 2)]
    questions = [
        Question(gpus=failing(BUSY, *functions, code=code), wish="cuda:0", own_pids=(OWN,)) for code in ERRORS
    ]
    for text, answer in zip(ERRORS.values(), stub.ask(tmp_path, *questions), strict=True):
        assert answer.memory == (79 * GIB, 50 * GIB, None)
        assert "Compute" in answer.reading["reason"]
        # The wrapper of pynvml has a text of its own for a missing function.
        assert (
            text in answer.reading["reason"]
            or "mismatch" in text
            or "match the NVML lib" in answer.reading["reason"]
        )


def test_lists_and_names_that_only_some_gpus_have_may_fail(stub, tmp_path):
    functions = [
        *(RUNNING.format(kind, version) for kind in ("MPSCompute", "Graphics") for version in (3, 2)),
        "nvmlDeviceGetName",
        "nvmlDeviceGetMigMode",
        "nvmlShutdown",
    ]
    questions = [
        Question(gpus=failing(BUSY, *functions, code=code), wish="cuda:0", own_pids=(OWN,)) for code in ERRORS
    ]
    for answer in stub.ask(tmp_path, *questions):
        assert (answer.uuid, answer.memory) == ("GPU-busy", (79 * GIB, 50 * GIB, 30 * GIB))


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_cannot_be_reached_is_left_out(stub, tmp_path, function):
    """CUDA doesn't see it either, so the others move up."""
    one = [
        Question(gpus=failing(BUSY, function, code=code, uuid="GPU-busy"), wish="cuda:0") for code in ERRORS
    ]
    all_ = [Question(gpus=failing(BUSY, function, code=code), wish="auto") for code in ERRORS]
    answers = stub.ask(tmp_path, *one, *all_)
    for text, answer in zip(ERRORS.values(), answers[: len(one)], strict=True):
        assert (answer.uuid, answer.memory[1]) == ("GPU-idle", 10 * GIB)
        assert any(line.startswith("WARNING GPU 0 is left out") and text in line for line in answer.logged)
    for text, answer in zip(ERRORS.values(), answers[len(one) :], strict=True):
        assert answer.device["kind"] == "cpu"
        assert any(line.startswith("INFO running on the CPU") and text in line for line in answer.logged)


def test_a_divided_gpu_whose_instances_are_unknown_is_not_taken_whole(stub, tmp_path):
    machine = [gpu("GPU-a", mig="1"), instance("MIG-a1"), gpu("GPU-b", used=70 * GIB)]
    functions = ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex")
    questions = [
        Question(gpus=failing(machine, function, code=code), wish="auto")
        for function in functions
        for code in ERRORS
    ]
    assert {answer.uuid for answer in stub.ask(tmp_path, *questions)} == {"GPU-b"}


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount"])
def test_without_nvml_auto_is_the_cpu_and_what_is_named_runs_unmeasured(stub, tmp_path, function):
    def asked(wish, **more):
        return [Question(gpus=failing(BUSY, function, code=code), wish=wish, **more) for code in ERRORS]

    listed = {"CUDA_VISIBLE_DEVICES": "3,2"}
    answers = iter(
        stub.ask(tmp_path, *asked("auto"), *asked("cuda:1", environ=listed), *asked("cuda", driver=False))
    )
    for text in ERRORS.values():
        answer = next(answers)
        assert answer.device["kind"] == "cpu"
        assert any(line.startswith("INFO running on the CPU") and text in line for line in answer.logged)
    for text in ERRORS.values():
        answer = next(answers)
        assert (answer.device["name"], answer.device["visible"]) == ("cuda:0", "2")
        assert answer.memory == (None, None, None)
        assert text in answer.reading["reason"]
        assert any(line.startswith("WARNING the memory of cuda:1 is unknown") for line in answer.logged)
    for text in ERRORS.values():
        error = next(answers).error
        assert error is not None
        assert text in error
        assert "--device cpu" in error


def test_numbers_that_cannot_be_are_unknown(stub, tmp_path):
    """Some systems with one memory for both answer with 0, and "not available" is the largest number there is."""
    nothing, endless = stub.ask(
        tmp_path,
        Question(gpus=[gpu("GPU-a", total=0)]),
        Question(gpus=[gpu("GPU-a", total=(1 << 64) - 1, used=(1 << 64) - 1)]),
    )
    for answer in (nothing, endless):
        assert answer.memory == (None, None, None)
        assert "can't be" in answer.reading["reason"]


def test_a_gpu_that_is_gone_after_it_was_found_is_unknown(stub, tmp_path):
    (answer,) = stub.ask(tmp_path, Question(gpus=BUSY, wish="cuda:1", later=BUSY[:3]))
    assert answer.memory == (None, None, None)
    assert "Not Found" in answer.reading["reason"]


def test_the_library_is_shut_down_as_often_as_it_was_initialized(stub, tmp_path):
    log = tmp_path / "calls"
    machine = [*BUSY, f"log {log}"]
    lost = [*failing(BUSY, "nvmlInitWithFlags", code=15), f"log {log}"]
    stub.ask(tmp_path, Question(gpus=machine, own_pids=(OWN,)), Question(gpus=lost), Question(gpus=machine))
    assert log.read_text().split() == ["init", "init", "shutdown", "shutdown"]
