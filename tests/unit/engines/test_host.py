"""The engine process on its pipe: it says what a job needs, holds it until that is granted, and tells its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing import Pipe

import pytest

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines import frames
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed, Sized
from ccs_workers.models.spec import ModelSpec

MB = 2**20


class Host:
    """The process, as its worker sees it."""

    def __init__(self, **options: object) -> None:
        spec = ModelSpec(alias="sim", modality=Modality.TEXT, engine="simulated", options=options)
        self.pipe, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ccs_workers.engines.host", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=dict(os.environ),
        )
        theirs.close()
        self.beats: list[frames.Frame] = []
        self.outputs: list[tuple[str, object]] = []
        self.send({"do": "load", "spec": spec.to_json()})
        self.info = frames.info_of(self._next("ready"))

    def send(self, frame: frames.Frame, blobs: list[bytes] | None = None) -> None:
        frames.send(self.pipe, frame, blobs or [])

    def start(self, key: str, memory_bytes: int | None, prompt: str = "one two", **job: object) -> None:
        sampling = Sampling(max_new_tokens=3)
        job = EngineJob(key=key, prompt=prompt, sampling=sampling, seed=1, memory_bytes=memory_bytes, **job)
        self.send(*frames.start_frame(job))

    def read(self, timeout_s: float = 10.0) -> frames.Frame:
        assert self.pipe.poll(timeout_s), "nothing came"
        frame, _ = frames.receive(self.pipe)
        if frame["do"] == "beat":
            self.beats.append(frame)
        if frame["do"] == "out":
            self.outputs += frames.outputs_of(frame)
        return frame

    def _next(self, verb: str) -> frames.Frame:
        while True:
            frame = self.read()
            if frame["do"] == verb:
                return frame

    def end(self, key: str) -> Done | Failed:
        while True:
            for owner, output in self.outputs:
                if owner == key and isinstance(output, Done | Failed):
                    return output
            self.read()

    def of(self, key: str) -> list[object]:
        return [output for owner, output in self.outputs if owner == key]

    def beat(self) -> frames.Frame:
        """The next one."""
        known = len(self.beats)
        while len(self.beats) == known:
            self.read()
        return self.beats[-1]


@pytest.fixture
def start_host():
    hosts: list[Host] = []

    def start(**options: object) -> Host:
        hosts.append(Host(**options))
        return hosts[-1]

    yield start
    for host in hosts:
        host.pipe.close()
        host.process.wait(10)


def test_what_a_simulated_engine_needs(start_host):
    host = start_host(weights_bytes=1000, bytes_per_job=100, bytes_per_token=10)
    assert (host.info.fixed_bytes, host.info.pool_bytes) == (1000, 0)
    assert host.info.need == (105.0, 5.0, 10.0, 0.0, 0.0)


def test_a_job_is_held_until_it_is_granted_what_it_needs(start_host):
    host = start_host(bytes_per_job=100, bytes_per_token=10)
    host.start("a", 149)
    while not host.of("a"):
        host.read()
    assert host.of("a") == [Sized(need_bytes=150)]
    host.start("b", 150)
    assert isinstance(host.end("b"), Done)
    host.send(frames.grant_frame("a", 149))
    host.send(frames.grant_frame("nobody", 10_000))
    host.start("c", None)
    assert isinstance(host.end("c"), Done)
    assert host.of("a") == [Sized(need_bytes=150)]
    host.send(frames.grant_frame("a", 150))
    assert isinstance(host.end("a"), Done)
    assert [type(output) for output in host.of("a")] == [Sized, Delta, Delta, Delta, Done]


def test_a_held_job_can_be_cancelled(start_host):
    host = start_host(bytes_per_job=100, seconds_per_image=600.0)
    host.start("a", 99, images=(b"x",))
    host.send({"do": "cancel", "key": "a"})
    assert host.end("a").finish_reason == "cancelled"
    assert [type(output) for output in host.of("a")] == [Sized, Done]


def test_memory_is_told_when_a_job_has_ended_and_now_and_again(start_host):
    host = start_host()
    host.beat()
    host.start("a", None)
    began = time.monotonic()
    host.end("a")
    memory = frames.memory_of(host.beat())
    assert time.monotonic() - began < frames.BEAT_EVERY_S
    assert 5 * MB < memory.used_bytes <= memory.peak_bytes < 500 * MB
    assert memory.allocated_bytes == memory.reserved_bytes == memory.used_bytes
    assert frames.memory_of(host.beat()) is not None


def test_what_jobs_brought_is_not_kept(start_host):
    """The last job's media too, while nothing else comes."""
    host = start_host()
    rest = frames.memory_of(host.beat()).used_bytes
    for number in range(4):
        host.start(f"job {number}", None, images=(bytes([number]) * (32 * MB),))
        host.end(f"job {number}")
    uses = [frames.memory_of(host.beat()) for _ in range(3)]
    assert max(frames.memory_of(beat).peak_bytes for beat in host.beats) > rest + 32 * MB
    assert uses[-1].used_bytes < rest + 4 * MB


def test_a_full_memory_fails_the_job_with_what_it_needs(start_host):
    host = start_host(bytes_per_job=100, bytes_per_token=10, raise_on="bang", raise_kind="memory")
    host.start("a", 150, prompt="bang now")
    assert host.end("a") == Failed(
        code="OUT_OF_MEMORY",
        message="the device's memory did not hold this job, which needs 150 bytes beside its model",
    )
    host.start("b", 150)
    assert isinstance(host.end("b"), Done)
