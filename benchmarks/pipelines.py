"""What a pipeline costs beside its jobs: a chain of four steps on instant engines, in turn with single jobs.

    python -m benchmarks.pipelines [--rounds 300]

A branched pipeline (one, two side by side, a join) is measured beside it, as its join goes through a chord; so is the
time from a cancel to the last slot free, in steps of the engines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis import Redis

from benchmarks.report import Figure, machine, percentile, show
from benchmarks.workers import ccs_worker
from ccs_broker import Client, topology
from ccs_broker.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_broker.client import JobHandle

_MODELS: Final = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
[models.steady]
modality = "text"
engine = "simulated"
tokens_per_second = {rate}
"""
#: Steps of the slower engine a second, for the cancels.
_RATE: Final = 10
_CANCELS: Final = 20
_TIMES: Final = 4
_BESIDE_S: Final = 0.005
_TOKENS: Final = 4


def one(client: Client) -> JobHandle:
    """A single job."""
    return client.submit("text", prompt="a", max_new_tokens=_TOKENS)


def chain(client: Client) -> JobHandle:
    """Four steps in a row."""
    pipeline = client.pipeline().step("a", "text", prompt="a", max_new_tokens=_TOKENS)
    for before, name in (("a", "b"), ("b", "c"), ("c", "d")):
        pipeline.step(name, "text", prompt=f"{{{before}.text}}", max_new_tokens=_TOKENS)
    return pipeline.submit()


def diamond(client: Client) -> JobHandle:
    """Four steps, two of them side by side."""
    pipeline = client.pipeline().step("a", "text", prompt="a", max_new_tokens=_TOKENS)
    for name in ("b", "c"):
        pipeline.step(name, "text", prompt=f"{name} {{a.text}}", max_new_tokens=_TOKENS)
    return pipeline.step("d", "text", prompt="{b.text} {c.text}", max_new_tokens=_TOKENS).submit()


def seconds(client: Client, submit: Callable[[Client], JobHandle]) -> float:
    """From before the submission to the outcome."""
    began = time.perf_counter()
    outcome = submit(client).result(timeout=60)
    taken = time.perf_counter() - began
    if not outcome.ok:
        raise RuntimeError(f"a job failed: {outcome.error}")
    return taken


def cancel_s(client: Client, redis: Redis) -> float:
    """From the cancel of three steps that run to the end of their leases."""
    pipeline = client.pipeline()
    for name in ("a", "b", "c"):
        pipeline.step(name, "text", model="steady", prompt=name, max_new_tokens=2000)
    run = pipeline.step("d", "text", prompt="{a.text} {b.text} {c.text}").submit()
    begun: set[str | None] = set()
    for event in run.stream(timeout=60):
        begun |= {event.step} if event.kind == "delta" else set()
        if len(begun) == 3:
            break
    began = time.perf_counter()
    run.cancel()
    while redis.zcard(topology.RUNNING):
        time.sleep(0.001)
    taken = time.perf_counter() - began
    if redis.exists(f"{topology.JOB}{run.id}-d"):
        raise RuntimeError("a later step began")
    return taken


def measure(given: argparse.Namespace, folder: Path) -> list[Figure]:
    """All kinds in turn."""
    models = folder / "models.toml"
    models.write_text(_MODELS.format(rate=_RATE))
    kinds = {"single": one, "chain": chain, "diamond": diamond}
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    with (
        EmbeddedServer() as server,
        ccs_worker(server.url, models, 8, log_folder=folder),
        Client(server.url) as client,
        Redis.from_url(server.url) as redis,
    ):
        for number in range(given.rounds + 20):
            for name, submit in kinds.items():
                found = seconds(client, submit)
                # The first ones bring imports and connections.
                if number >= 20:
                    taken[name].append(found)
        cancels = [cancel_s(client, redis) for _ in range(_CANCELS)]
    single, four, branched = (percentile(taken[name], 50) for name in kinds)
    bar = 1000 * (_TIMES * single + _BESIDE_S)
    return [
        Figure(name="single job, p50", value=1000 * single, unit="ms"),
        Figure(name="four steps in a row, p50", value=1000 * four, unit="ms", bar=bar, at_most=True),
        Figure(name="the same, p95", value=1000 * percentile(taken["chain"], 95), unit="ms"),
        Figure(name="one, two side by side, one: p50", value=1000 * branched, unit="ms"),
        Figure(name="the same, p95", value=1000 * percentile(taken["diamond"], 95), unit="ms"),
        Figure(name="steps of the engine from a cancel to the last slot free, most", value=max(cancels) * _RATE, bar=2,
               at_most=True),
    ]  # fmt: skip


def main() -> bool:
    """Print the figures; True if every bar is met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args([] if sys.argv[0].endswith("benchmarks/__main__.py") else None)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="ccs-pipelines-") as folder:
        found = measure(given, Path(folder))
    return show("What a pipeline of four steps costs", found)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
