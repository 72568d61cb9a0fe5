"""Memory of the device as NVML, torch and the ledger's figures have it, and that it comes back."""

from __future__ import annotations

import pytest
import torch

from ccs_broker.errors import ConfigurationError
from ccs_workers.devices import find_device
from ccs_workers.engines.protocol import Done
from ccs_workers.executor.handle import EngineHandle
from tests.gpu.models import Watched, bench, run_jobs, spec_of, trail, wait_until

pytestmark = [pytest.mark.gpu]

MIB = 2**20
#: What the driver may round or keep for itself, whatever the size of a device.
SLACK_BYTES = 64 * MIB


@pytest.fixture
def device():
    found = find_device("cuda:0")
    reading = found.read()
    if reading.used_bytes is None:
        pytest.skip(f"NVML tells nothing of the device: {reading.reason}")
    return found


@pytest.fixture
def started():
    """Start engines, and end them whatever happens."""
    handles = []

    def start(spec):
        watched = Watched()
        handle = EngineHandle(spec, watched.take, watched.deaths.append, watched.needs.__setitem__)
        handles.append(handle)
        return handle, watched, handle.start()

    yield start
    for handle in handles:
        handle.close()


def used_by(pid: int, device) -> int:
    """Bytes of a process as NVML has them; skips where it doesn't tell."""
    reading = device.read([pid])
    if pid not in reading.by_pid:
        # A container may hide processes: then it must say so, and never that nobody uses anything.
        assert reading.others_bytes is None
        assert reading.reason
        pytest.skip(reading.reason)
    return reading.by_pid[pid]


def test_the_devices_totals_are_torchs(device):
    reading = device.read()
    free, total = torch.cuda.mem_get_info()
    print(f"\nNVML: {reading.used_bytes / MIB:.0f} of {reading.total_bytes / MIB:.0f} MiB used")
    print(f"torch: {(total - free) / MIB:.0f} of {total / MIB:.0f} MiB used")
    assert abs(reading.total_bytes - total) <= 0.02 * total
    assert abs(reading.free_bytes - free) <= 0.02 * total


def test_what_an_engine_takes_is_seen_by_nvml_torch_and_the_engine_alike(device, medium, started):
    before = device.read().used_bytes
    handle, _, info = started(spec_of(medium))
    wait_until(lambda: handle.memory is not None, 20, "the engine tells its memory")
    taken = device.read().used_bytes - before
    told = handle.memory.used_bytes
    print(f"\nthe device: {taken / MIB:.0f} MiB more; the engine of itself: {told / MIB:.0f} MiB")
    assert taken > info.weights_bytes
    assert abs(taken - told) <= 0.05 * taken + SLACK_BYTES
    own = used_by(handle.pid, device)
    print(f"NVML of its process: {own / MIB:.0f} MiB")
    assert abs(own - taken) <= 0.05 * taken + SLACK_BYTES
    assert device.read([handle.pid]).others_bytes == pytest.approx(before, abs=0.05 * taken + SLACK_BYTES)


def test_the_peak_stays_within_what_is_reserved(medium, started):
    handle, watched, info = started(spec_of(medium))
    assert info.fixed_bytes > info.weights_bytes
    peaks = []
    for round_number in range(3):
        jobs = [trail(number, tokens=200) for number in range(16)]
        keys = run_jobs(handle, watched, jobs, f"round {round_number}")
        assert all(isinstance(watched.ends[key], Done) for key in keys)
        told = handle.memory
        wait_until(lambda told=told: handle.memory is not told, 20, "the engine tells its memory anew")
        peaks += [told.peak_bytes if told else 0, handle.memory.peak_bytes]
    needs = sum(watched.needs[key] for key in keys)
    # A pool is there from the start: jobs divide it.
    reserved = info.fixed_bytes + (0 if info.pool_bytes else needs)
    over = 100 * (max(peaks) - reserved) / reserved
    print(f"\npeak {max(peaks) / MIB:.0f} MiB, reserved {reserved / MIB:.0f} MiB ({over:+.1f} %)")
    assert max(peaks) <= 1.05 * reserved
    assert not info.pool_bytes or needs <= 1.05 * info.pool_bytes


@pytest.mark.parametrize("end", ["close", "kill"])
def test_memory_is_back_when_the_process_has_ended(device, medium, started, end):
    before = device.read().used_bytes
    handle, watched, _ = started(spec_of(medium))
    run_jobs(handle, watched, [trail(number) for number in range(8)], "some")
    during = device.read().used_bytes
    getattr(handle, end)()
    wait_until(
        lambda: device.read().used_bytes <= 1.05 * before,
        30,
        f"{during} bytes are {before} again, within 5 %",
    )
    after = device.read().used_bytes
    print(f"\n{before / MIB:.0f} MiB before, {during / MIB:.0f} during, {after / MIB:.0f} after ({end})")


def test_a_pool_beyond_the_device_is_refused_and_leaves_nothing(device, tiny, started):
    before = device.read().used_bytes
    with pytest.raises(ConfigurationError, match="kv_tokens"):
        started(spec_of(tiny, options={"kv_tokens": 2_000_000_000}))
    wait_until(lambda: device.read().used_bytes <= 1.05 * before, 30, "the refused engine's memory is back")
    handle, watched, _ = started(spec_of(tiny))
    (key,) = run_jobs(handle, watched, [trail(1)], "after")
    assert isinstance(watched.ends[key], Done)


def test_a_pool_for_one_job_serves_many_in_turn_and_refuses_what_never_fits(tiny):
    with bench(spec_of(tiny, options={"kv_tokens": 160})) as found:
        assert found.info("random").context_tokens <= 160
        jobs = [trail(number, prompt="short", tokens=64) for number in range(12)]
        long = trail(99, prompt="x" * 150, tokens=64)
        found.drive([*jobs, long])
    assert all(isinstance(job.end, Done) for job in jobs)
    assert long.end.code == "CONTEXT_TOO_LONG"


def test_jobs_on_a_full_device_end_one_way_or_the_other_and_the_engine_serves_on(medium, started):
    spec = spec_of(medium, options={"step_tokens": 8192})
    handle, watched, _ = started(spec)
    held = []
    for size in (256 * MIB, 32 * MIB, 2 * MIB):
        while True:
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break
    try:
        crowd = [trail(number, prompt="x" * 700, tokens=64) for number in range(16)]
        keys = run_jobs(handle, watched, crowd, "full")
        codes = {getattr(watched.ends[key], "code", "succeeded") for key in keys if key in watched.ends}
        print(f"\non a full device: {sorted(codes)}, deaths: {watched.deaths}")
        assert codes <= {"succeeded", "OUT_OF_MEMORY"}
        # An engine that can't build its pool anew ends itself, and its worker starts another one.
        assert watched.deaths or len(codes) >= 1
    finally:
        held.clear()
        torch.cuda.empty_cache()
    if watched.deaths:
        handle, watched, _ = started(spec)
    (key,) = run_jobs(handle, watched, [trail(1, tokens=16)], "afterwards")
    assert isinstance(watched.ends[key], Done)
