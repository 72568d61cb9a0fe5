"""Parts of the converters: layers paired by execution order, and weights that must fit their class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ccs_workers.models.prepare.fill import fill
from ccs_workers.models.prepare.onnx_file import Affine, Convolution, GraphWeights
from ccs_workers.models.prepare.weights import save_weights

pytestmark = pytest.mark.engines

RANDOM = np.random.default_rng(5)


def numbers(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def graph(convolutions, linears=(), layer_norms=()):
    return GraphWeights(
        convolutions=tuple(convolutions), linears=tuple(linears), layer_norms=tuple(layer_norms), metadata={}
    )


class Crossed(nn.Module):
    """Runs its layers in another order than it names them."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.norm = nn.LayerNorm(4)
        self.second = nn.Conv2d(3, 4, 1)
        self.first_norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(2, 3, 1, bias=False)

    def forward(self, pixels):
        return self.last(self.norm(self.second(self.first_norm(self.first(pixels))).mean((2, 3))))


def test_weights_go_where_execution_reaches_them():
    first, second = numbers(3, 2, 1, 1), numbers(4, 3, 1, 1)
    folded, bias = numbers(3), numbers(4)
    scale, shift, product, offset = numbers(4), numbers(4), numbers(4, 2), numbers(2)
    model = Crossed()
    fill(
        model,
        torch.zeros(1, 2, 5, 5),
        graph(
            [
                Convolution(weight=first, bias=folded, norm=None),
                Convolution(weight=second, bias=bias, norm=None),
            ],
            [Affine(weight=product, bias=offset)],
            [Affine(weight=scale, bias=shift)],
        ),
    )
    # A norm folded into a convolution's bias does exactly that addition.
    pixels = torch.from_numpy(numbers(1, 2, 5, 5))
    with torch.no_grad():
        hidden = nn.functional.conv2d(pixels, torch.from_numpy(first), torch.from_numpy(folded))
        assert torch.allclose(model.first_norm(model.first(pixels)), hidden, atol=1e-6)
    assert np.array_equal(model.second.weight.detach().numpy(), second)
    assert np.array_equal(model.second.bias.detach().numpy(), bias)
    assert np.array_equal(model.norm.weight.detach().numpy(), scale)
    assert np.array_equal(model.last.weight.detach().numpy(), product.T)


def test_statistics_of_a_norm_are_copied():
    norm = tuple(abs(numbers(3)) for _ in range(4))
    model = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.BatchNorm2d(3))
    weights = graph([Convolution(weight=numbers(3, 2, 1, 1), bias=None, norm=norm)])
    fill(model, torch.zeros(1, 2, 4, 4), weights)
    parts = (model[1].weight, model[1].bias, model[1].running_mean, model[1].running_var)
    assert all(np.array_equal(part.detach().numpy(), given) for part, given in zip(parts, norm, strict=True))


@pytest.mark.parametrize(
    ("convolutions", "complaint"),
    [
        ([], "runs 1 convolutions, the graph 0"),
        ([Convolution(weight=numbers(3, 2, 3, 3), bias=numbers(3), norm=None)], "layer 0: shape"),
        ([Convolution(weight=numbers(3, 2, 1, 1), bias=None, norm=None)], "only one side has a bias"),
    ],
)
def test_what_does_not_fit_is_refused(convolutions, complaint):
    with pytest.raises(ValueError, match=complaint):
        fill(nn.Sequential(nn.Conv2d(2, 3, 1)), torch.zeros(1, 2, 4, 4), graph(convolutions))


def tiny_llama():
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        tie_word_embeddings=True,
    )
    state = LlamaForCausalLM(config).state_dict()
    del state["lm_head.weight"]
    return config, state


def test_weights_that_fit_are_saved_and_load(tmp_path):
    config, state = tiny_llama()
    save_weights(state, LlamaForCausalLM, config, tmp_path, tied=["lm_head.weight"])
    stored = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in state.items())
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(model.lm_head.weight, state["model.embed_tokens.weight"])


@pytest.mark.parametrize("change", ["missing", "foreign", "misshapen"])
def test_weights_that_do_not_fit_are_refused(tmp_path, change):
    config, state = tiny_llama()
    norm = state.pop("model.norm.weight")
    if change == "foreign":
        state |= {"model.norm.weight": norm, "model.other.weight": norm}
    if change == "misshapen":
        state["model.norm.weight"] = torch.zeros(5)
    with pytest.raises(ValueError, match=r"don't fit LlamaForCausalLM: model\.(norm|other)\.weight"):
        save_weights(state, LlamaForCausalLM, config, tmp_path, tied=["lm_head.weight"])
    assert list(tmp_path.iterdir()) == []
