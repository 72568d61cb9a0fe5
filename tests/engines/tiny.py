"""Tiny models with random weights and a byte-level tokenizer, built here; nothing is downloaded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import GPT2Config, LlamaConfig, PreTrainedTokenizerFast
from transformers.models.gpt2 import GPT2LMHeadModel
from transformers.models.llama import LlamaForCausalLM

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines.protocol import Delta, Done, EngineJob, Failed, Sized
from ccs_workers.models.spec import ModelSpec
from tests.helpers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from ccs_workers.engines.protocol import EngineOutput
    from ccs_workers.engines.text import TextEngine

END = "<|end|>"
END_ID = 256
#: Vocabulary: 256 bytes, the end token, and scores that belong to no token.
SCORES = 260
CONTEXT = 64
CHAT = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.chat_template = chat_template
    return fast


def build(kind: str, folder: Path, *, chat_template: str | None = None, context: int = CONTEXT) -> Path:
    """Write a model of two layers whose weights are wide enough that its scores don't tie."""
    torch.manual_seed(11)
    shared = {"vocab_size": SCORES, "initializer_range": 0.4, "bos_token_id": None, "eos_token_id": END_ID}
    if kind == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=context,
                **shared,
            )
        )
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=context, **shared))
    model.generation_config.eos_token_id = END_ID
    model.save_pretrained(folder)
    byte_tokenizer(chat_template).save_pretrained(folder)
    return folder


def spec_of(folder: Path, **keys: object) -> ModelSpec:
    options = {"max_batch": 8, "kv_tokens": 1024, **keys.pop("options", {})}
    keys = {"device": "cpu", **keys}
    return ModelSpec(
        alias="tiny", modality=Modality.TEXT, engine="text", path=folder, options=options, **keys
    )


class Collector:
    """Takes what an engine emits; one list of outputs a job, and its size apart from them."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[EngineOutput]] = {}
        self.sizes: dict[str, int] = {}
        self.engine: TextEngine | None = None
        #: Called with key and output within the engine's thread.
        self.hook = lambda key, output: None
        self._lock = threading.Lock()

    def emit(self, key: str, output: EngineOutput) -> None:
        if isinstance(output, Sized):
            assert key not in self.outputs
            self.sizes[key] = output.need_bytes
            return
        with self._lock:
            self.outputs.setdefault(key, []).append(output)
        self.hook(key, output)

    def start(self, key: str, prompt: str, *, seed: int = 0, **sampling: object) -> None:
        sampling.setdefault("max_new_tokens", 16)
        self.engine.start(EngineJob(key=key, prompt=prompt, sampling=Sampling(**sampling), seed=seed))

    def last(self, key: str) -> Done | Failed | None:
        outputs = self.outputs.get(key, [])
        return outputs[-1] if outputs and isinstance(outputs[-1], Done | Failed) else None

    def end(self, key: str) -> Done | Failed:
        """Wait for a job's end."""
        return wait_until(lambda: self.last(key), timeout_s=30, message=f"job {key} never ended")

    def ids(self, key: str) -> list[int]:
        return [number for one in self.outputs[key] if isinstance(one, Delta) for number in one.token_ids]

    def text(self, key: str) -> str:
        return "".join(one.text for one in self.outputs[key] if isinstance(one, Delta))

    def run(self, key: str, prompt: str, **sampling: object) -> list[int]:
        """Run one job alone; return its tokens."""
        self.start(key, prompt, **sampling)
        done = self.end(key)
        assert isinstance(done, Done), done
        return self.ids(key)
