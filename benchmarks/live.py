"""A trace against real Redis and real workers with simulated engines, beside the simulator's run of the same trace.

Each worker runs one reference device (``reference`` of the model file) for all modalities, so nothing of the path is
simulated but the arithmetic: prompts of as many words as the trace has tokens, pictures, and sounds of the right
length go through client, server, claims, pipes and logs. With ``--compress C`` everything is C times as fast, in the
simulator as well: devices and arrivals; the policy's constants stay, so both runs solve the same task.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
import wave
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from redis import Redis

from benchmarks.report import Figure, show
from benchmarks.workers import ccs_worker
from ccs_broker import Client, topology
from ccs_broker.contract import QosClass
from ccs_broker.contract.limits import MAX_PARTS
from ccs_broker.server import EmbeddedServer
from ccs_broker.simulate.arrival_order import capacity
from ccs_broker.simulate.compare import Comparison, compare
from ccs_broker.simulate.metrics import percentile
from ccs_broker.simulate.model import REFERENCE, DeviceModel
from ccs_broker.simulate.trace import Row, read_trace, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccs_broker.simulate.metrics import Summary

WORKERS: Final = 4
LOAD: Final = 0.9
ROWS: Final = 4000
COMPRESS: Final = 1.0
#: Largest difference of a median or a 90th percentile from the simulator's, as a share of it.
BAR: Final = 0.15
TRACE: Final = Path(__file__).parent / "traces" / "mixed_seed7.csv"
_RATE_HZ: Final = 16_000
_MODELS: Final = """
[models.sim]
modality = "text"
engine = "simulated"
reference = "device.json"
time_scale = {compress}
context_tokens = 10_000_000
memory_bytes = {kv_tokens}
bytes_per_token = 1
[models.eyes]
modality = "vision"
shares = "sim"
[models.ears]
modality = "audio"
shares = "sim"
"""
#: Names of the coefficients that are times.
_TIMES: Final = (
    "iteration_base_s", "prefill_s_per_token", "decode_s_per_sequence", "encode_s_per_image",
    "encode_s_per_audio_second", "max_encode_s_per_iteration",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What became of the jobs of a live run: seconds until the first output by class, and how late they were sent."""

    first_s: Mapping[QosClass, Sequence[float]]
    lag_s: Sequence[float]
    preempted: int
    relegated: int


def faster(model: DeviceModel, compress: float) -> DeviceModel:
    """The device, so many times as fast."""
    return replace(model, **{name: getattr(model, name) / compress for name in _TIMES})


def model_file(folder: Path, compress: float) -> Path:
    """Write a model file with one reference device for all modalities."""
    device = {name: getattr(REFERENCE, name) for name in _TIMES}
    (folder / "device.json").write_text(json.dumps(device))
    path = folder / "models.toml"
    path.write_text(_MODELS.format(compress=compress, kv_tokens=REFERENCE.kv_tokens))
    return path


class Media:
    """Real pictures and sounds, small and of the right length."""

    def __init__(self) -> None:
        out = io.BytesIO()
        Image.new("RGB", (16, 16), "white").save(out, "PNG")
        self._picture = out.getvalue()

    def options(self, row: Row) -> dict[str, Any]:
        """Arguments of submit for a request; one prompt word is one token."""
        options: dict[str, Any] = {
            "prompt": ("x " * row.context_tokens)[:-1],
            "max_new_tokens": row.generated_tokens,
            "qos": row.qos,
            "tenant": row.tenant,
        }
        if row.images:
            options["images"] = [self._picture] * row.images
        if row.audio_s:
            options["audio"] = self._sound(row.audio_s)
        return options

    @staticmethod
    def _sound(seconds: float) -> bytes:
        out = io.BytesIO()
        with wave.open(out, "wb") as sound:
            sound.setnchannels(1)
            sound.setframerate(_RATE_HZ)
            sound.setsampwidth(2)
            sound.writeframes(bytes(2 * round(seconds * _RATE_HZ)))
        return out.getvalue()


def submit_all(client: Client, rows: Sequence[Row]) -> tuple[list[str], list[float]]:
    """Submit each request when it is due; the jobs' ids, and by how many seconds each was late."""
    media = Media()
    ids: list[str] = []
    lag_s: list[float] = []
    began = time.monotonic()
    for row in rows:
        options = media.options(row)
        wait_s = began + row.arrival_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        lag_s.append(max(0.0, -wait_s))
        ids.append(client.submit(row.modality, **options).id)
    return ids, lag_s


def run_live(rows: Sequence[Row], compress: float, slots: int) -> Live:
    """Send a trace through a server and workers of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(EmbeddedServer())
        models = model_file(folder, compress)
        for _ in range(WORKERS):
            stack.enter_context(ccs_worker(server.url, models, slots))
        client = stack.enter_context(Client(server.url))
        redis = stack.enter_context(Redis.from_url(server.url, decode_responses=True))
        ids, lag_s = submit_all(client, rows)
        limit = time.monotonic() + 300
        while redis.zcard(topology.EXPIRY):
            if time.monotonic() > limit:
                raise RuntimeError(f"{redis.zcard(topology.EXPIRY)} jobs have not ended")
            time.sleep(0.2)
        return _read(redis, rows, ids, lag_s)


def _read(redis: Redis, rows: Sequence[Row], ids: Sequence[str], lag_s: Sequence[float]) -> Live:
    with redis.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hmget(topology.JOB + job_id, "state", "sub", "first", "relegated", "preempted")
        found = pipe.execute()
    first_s: dict[QosClass, list[float]] = {qos: [] for qos in QosClass}
    for row, (state, submitted, first, _, _) in zip(rows, found, strict=True):
        if state != "succeeded":
            raise RuntimeError(f"a job ended {state}")
        first_s[row.qos].append((int(first) - int(submitted)) / 1000)
    return Live(
        first_s=first_s,
        lag_s=lag_s,
        preempted=sum(int(preempted or 0) for *_, preempted in found),
        relegated=sum(relegated == "1" for *_, relegated, _ in found),
    )


def simulated(rows: Sequence[Row], compress: float) -> Summary:
    """The simulator's run of the same rows at the same times."""
    comparison = Comparison(
        rows=rows,
        policies=("balanced",),
        loads=(),
        workers=WORKERS,
        model=faster(REFERENCE, compress),
        learnt=True,
        preempts=True,
    )
    (run,) = compare(comparison)
    return run.summary


def figures_of(live: Live, theirs: Summary) -> list[Figure]:
    """Ours beside the simulator's, class by class."""
    figures = []
    for qos, waits in live.first_s.items():
        for name, share, table in (
            ("median", 0.5, theirs.median_first_s),
            ("p90", 0.9, theirs.p90_first_s),
        ):
            ours, simulators = percentile(waits, share), table[qos]
            if ours is None or simulators is None:
                continue
            figures += [
                Figure(name=f"{qos} {name}, live", value=1000 * ours, unit="ms"),
                Figure(name=f"{qos} {name}, simulator", value=1000 * simulators, unit="ms"),
                Figure(
                    name=f"{qos} {name}, difference",
                    value=100 * abs(ours / simulators - 1),
                    unit="%",
                    bar=100 * BAR,
                    at_most=True,
                ),
            ]
    return [
        *figures,
        Figure(name="preempted, live", value=live.preempted),
        Figure(name="preempted, simulator", value=theirs.preempted),
        Figure(name="relegated, live", value=live.relegated),
        Figure(name="relegated, simulator", value=theirs.relegated),
        Figure(
            name="99th percentile of late submissions", value=1000 * percentile(live.lag_s, 0.99), unit="ms"
        ),
    ]


def main() -> bool:
    """Run both and print; True if every bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--compress", type=float, default=COMPRESS, help="so many times as fast, 10 at most")
    options, _ = parser.parse_known_args()
    # A job carries so many media at most; a few requests of the trace have more, and lose them in both runs.
    rows = [
        replace(row, images=min(row.images, MAX_PARTS - 1)) for row in read_trace(options.trace, options.rows)
    ]
    per_second = LOAD * options.compress * capacity(rows, REFERENCE, WORKERS)
    rows = scaled(rows, len(rows) / rows[-1].arrival_s / per_second)
    theirs = simulated(rows, options.compress)
    live = run_live(rows, options.compress, REFERENCE.max_sequences)
    title = f"{len(rows)} jobs at {LOAD:g} of the capacity of {WORKERS} workers, {options.compress:g} times as fast"
    return show(title, figures_of(live, theirs))


if __name__ == "__main__":
    sys.exit(not main())
