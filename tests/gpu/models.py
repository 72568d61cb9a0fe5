"""Random text models made on the spot, their engine processes, and jobs for them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig
from transformers.models.llama import LlamaForCausalLM

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines.protocol import EngineJob
from ccs_workers.models.spec import ModelSpec
from ccs_workers.verify.bench import Bench
from ccs_workers.verify.records import Check
from ccs_workers.verify.trail import Trail
from tests.engines.tiny import END_ID, SCORES, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ccs_workers.executor.handle import EngineHandle

CONTEXT = 1024
PATIENCE_S = 120.0
PROMPTS = (
    "The boats left the harbor before dawn",
    "日本 and 北京",
    "def prime(n):",
    "x",
    "🎉 e\u0301 " * 6,
    "once " * 60,
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a model is."""

    hidden: int
    layers: int


TINY = Size(hidden=64, layers=2)
#: About 0.4 GB in fp32, so that its weights stand out of a context's memory.
MEDIUM = Size(hidden=1024, layers=8)


def build(folder: Path, size: Size) -> Path:
    """Write a model whose scores are so wide that rounding doesn't choose between two of them."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=SCORES,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 16,
        num_key_value_heads=size.hidden // 32,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4 if size is TINY else 0.06,
        bos_token_id=None,
        eos_token_id=END_ID,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = END_ID
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def spec_of(folder: Path, device: str = "cuda", **changes: object) -> ModelSpec:
    options = {"max_batch": 16, "kv_tokens": 16 * 512, **changes.pop("options", {})}
    spec = ModelSpec(
        alias="random", modality=Modality.TEXT, engine="text", path=folder, device=device, options=options
    )
    return replace(spec, **changes)


def trail(number: int, *, prompt: str | None = None, tokens: int = 32, **sampling: object) -> Trail:
    """One job; its prompt differs from that of every other number."""
    text = PROMPTS[number % len(PROMPTS)] if prompt is None else prompt
    job = EngineJob(
        key="",
        prompt=f"{number}: {text}",
        sampling=Sampling.model_validate({"max_new_tokens": tokens, **sampling}),
        seed=number,
    )
    return Trail(Check(name=f"job {number}", alias="random", job=job))


@contextmanager
def bench(spec: ModelSpec) -> Iterator[Bench]:
    """The engine's process, driven as `ccs verify` drives it."""
    with Bench([spec], patience_s=PATIENCE_S) as found:
        yield found


@dataclass
class Watched:
    """What an engine process has told so far."""

    ends: dict[str, object] = field(default_factory=dict)
    needs: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    deaths: list[str] = field(default_factory=list)

    def take(self, outputs: Sequence[tuple[str, object]]) -> None:
        for key, output in outputs:
            self.tokens += len(getattr(output, "token_ids", ()))
            if type(output).__name__ in {"Done", "Failed"}:
                self.ends[key] = output


def wait_until(condition: object, timeout_s: float, what: str) -> None:
    """Wait for a condition; fail saying for what."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


def run_jobs(handle: EngineHandle, watched: Watched, jobs: Sequence[Trail], name: str) -> list[str]:
    """Hand in jobs and wait for their ends; their keys."""
    keys = [f"{name} {number}" for number in range(len(jobs))]
    for key, one in zip(keys, jobs, strict=True):
        handle.submit(replace(one.check.job, key=key))
    wait_until(lambda: all(key in watched.ends for key in keys) or watched.deaths, PATIENCE_S, "all jobs end")
    return keys
