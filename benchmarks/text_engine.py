"""Tokens per second of the text engine: one by one, 8 at once, 16 at once, and the bare batching manager.

Run as ``python benchmarks/text_engine.py [--model FOLDER] [--pairs N] [--torch-threads N]``. Runs alternate and
the medians of their ratios are what counts: other work on the machine hits both of a pair alike. Rates are given by
the clock and by the CPU time used, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from transformers import GenerationConfig

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed
from ccs_workers.engines.text import TextEngine
from ccs_workers.engines.text.loader import load_model
from ccs_workers.engines.text.loop import configuration
from ccs_workers.engines.text.options import TextOptions
from ccs_workers.engines.text.vocabulary import Vocabulary
from ccs_workers.models.spec import ModelSpec

if TYPE_CHECKING:
    from ccs_workers.engines.protocol import EngineOutput

FOLDER = Path("~/.cache/ccs-workers/models/smollm2")
NEW_TOKENS = 64
TOPICS = ("rivers", "clocks", "bread", "maps", "glass", "bees", "tides", "chess")
PROMPTS = [f"Write a long story about {topic}, part {part}." for part in (1, 2) for topic in TOPICS]


class Rate(NamedTuple):
    """Tokens per second."""

    by_clock: float
    by_cpu: float


class Meter:
    """Measures from its construction on."""

    def __init__(self) -> None:
        self._clock, self._cpu = time.perf_counter(), time.process_time()

    def rate(self, tokens: int) -> Rate:
        return Rate(tokens / (time.perf_counter() - self._clock), tokens / (time.process_time() - self._cpu))


class Feed:
    """An engine fed with jobs; counts the tokens of each run."""

    def __init__(self, spec: ModelSpec) -> None:
        self._tokens = 0
        self._ended = threading.Semaphore(0)
        self._runs = 0
        self.engine = TextEngine(spec, self._take)
        self.engine.load()

    def _take(self, key: str, output: EngineOutput) -> None:
        if isinstance(output, Delta):
            self._tokens += len(output.token_ids)
        elif isinstance(output, Failed):
            raise SystemExit(f"{key}: {output.message}")
        elif isinstance(output, Done):
            self._ended.release()

    def rate(self, prompts: list[str], at_once: int) -> Rate:
        """Tokens per second with ``at_once`` jobs in flight at most, in groups."""
        self._runs, self._tokens, meter = self._runs + 1, 0, Meter()
        sampling = Sampling(max_new_tokens=NEW_TOKENS)
        for first in range(0, len(prompts), at_once):
            group = prompts[first : first + at_once]
            for number, prompt in enumerate(group):
                key = f"{self._runs}:{first + number}"
                self.engine.start(EngineJob(key=key, prompt=prompt, sampling=sampling, seed=0))
            for _ in group:
                self._ended.acquire()
        return meter.rate(self._tokens)


class Bare:
    """The batching manager by itself, with the engine's weights and sizes, fed with token ids in one process."""

    def __init__(self, spec: ModelSpec, options: TextOptions) -> None:
        loaded = load_model(spec, packed=options.packed_weights)
        self._ends = sorted(loaded.end_ids)
        self._vocabulary = Vocabulary(loaded.tokenizer, options, spec.alias)
        self.manager = loaded.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=configuration(options, options.max_batch * 512, "cpu"),
        )
        with torch.inference_mode():
            self.manager.start()

    def rate(self, prompts: list[str]) -> Rate:
        ids = [self._vocabulary.encode(prompt) for prompt in prompts]
        tokens, meter = 0, Meter()
        for prompt in ids:
            self.manager.add_request(prompt, max_new_tokens=NEW_TOKENS, eos_token_id=self._ends)
        for _ in ids:
            tokens += len(self.manager.get_result().generated_tokens)
        return meter.rate(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--torch-threads", type=int, default=1)
    given = parser.parse_args()
    spec = ModelSpec(
        alias="bench",
        modality=Modality.TEXT,
        engine="text",
        path=given.model.expanduser(),
        options={"torch_threads": given.torch_threads},
    )
    options = TextOptions.of(spec)
    torch.set_num_threads(options.torch_threads)
    feed, bare = Feed(spec), Bare(spec, options)
    feed.rate(PROMPTS[:2], 2)
    bare.rate(PROMPTS[:2])
    rows: list[dict[str, Rate]] = []
    for _ in range(given.pairs):
        row = {"one_by_one": feed.rate(PROMPTS[:8], 1), "at_once_8": feed.rate(PROMPTS[:8], 8)}
        row |= {"engine_16": feed.rate(PROMPTS, 16), "manager_16": bare.rate(PROMPTS)}
        rows.append(row)
        print(
            json.dumps({name: [round(rate, 1) for rate in rates] for name, rates in row.items()}), flush=True
        )
    for index, name in enumerate(Rate._fields):
        gain = statistics.median(row["at_once_8"][index] / row["one_by_one"][index] for row in rows)
        share = statistics.median(row["engine_16"][index] / row["manager_16"][index] for row in rows)
        print(json.dumps({name: {"gain_of_8_at_once": round(gain, 2), "share_of_manager": round(share, 3)}}))
    bare.manager.stop(hard_stop=True)
    feed.engine.close()


if __name__ == "__main__":
    main()
