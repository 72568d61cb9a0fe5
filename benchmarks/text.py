"""Tokens per second of the whole path, from ``Client.submit`` to the outcome, beside the bare batching manager.

One worker, one text engine with one thread. Each of the pairs runs 8 jobs one after another, the same 8 at once,
16 at once, and the same 16 through transformers' manager fed directly in this process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.report import Figure, median_ratio, show
from benchmarks.text_engine import FOLDER, NEW_TOKENS, PROMPTS, Bare
from benchmarks.workers import ccs_worker
from ccs_broker import Client
from ccs_broker.contract import Modality
from ccs_broker.server import EmbeddedServer
from ccs_workers.engines.text.options import TextOptions
from ccs_workers.models.spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIRS = 5


def model_file(folder: Path) -> Path:
    """Write a model file with the prepared text model."""
    models = folder / "models.toml"
    models.write_text(f'[models.text]\nmodality = "text"\nengine = "text"\npath = "{FOLDER.expanduser()}"\n')
    return models


def rate(client: Client, prompts: Sequence[str], at_once: int) -> float:
    """Tokens a second with ``at_once`` jobs in flight, in groups."""
    tokens, began = 0, time.perf_counter()
    for first in range(0, len(prompts), at_once):
        group = [
            client.submit("text", prompt=prompt, max_new_tokens=NEW_TOKENS)
            for prompt in prompts[first : first + at_once]
        ]
        for job in group:
            outcome = job.result(timeout=300)
            if not outcome.ok:
                raise RuntimeError(f"a job ended {outcome.state}: {outcome.error}")
            tokens += outcome.usage.completion_tokens
    return tokens / (time.perf_counter() - began)


def main() -> bool:
    """Run all pairs and print; True if every bar is met."""
    spec = ModelSpec(alias="bare", modality=Modality.TEXT, engine="text", path=FOLDER.expanduser())
    torch.set_num_threads(1)
    bare = Bare(spec, TextOptions.of(spec))
    rows: dict[str, list[float]] = {name: [] for name in ("alone", "eight", "sixteen", "bare")}
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer() as server,
        ccs_worker(server.url, model_file(Path(folder)), 16),
        Client(server.url) as client,
    ):
        client.submit("text", prompt="warm up", max_new_tokens=4).result(timeout=300)
        bare.rate(PROMPTS[:2])
        for _ in range(PAIRS):
            rows["alone"].append(rate(client, PROMPTS[:8], 1))
            rows["eight"].append(rate(client, PROMPTS[:8], 8))
            rows["sixteen"].append(rate(client, PROMPTS, 16))
            rows["bare"].append(bare.rate(PROMPTS).by_clock)
    bare.manager.stop(hard_stop=True)
    median = {name: sorted(values)[len(values) // 2] for name, values in rows.items()}
    return show(
        f"Text through the whole path, {NEW_TOKENS} tokens a job, {PAIRS} alternating runs",
        [
            Figure(name="8 jobs one after another", value=median["alone"], unit="tok/s"),
            Figure(name="8 jobs at once", value=median["eight"], unit="tok/s"),
            Figure(name="16 jobs at once", value=median["sixteen"], unit="tok/s"),
            Figure(name="16 through the bare manager", value=median["bare"], unit="tok/s"),
            Figure(
                name="8 at once / one by one",
                value=median_ratio(rows["eight"], rows["alone"]),
                unit="x",
                bar=4.0,
            ),
            Figure(
                name="16 at once / bare manager",
                value=median_ratio(rows["sixteen"], rows["bare"]),
                unit="x",
                bar=0.95,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(not main())
