"""Which text models are served: whole ones with sane weights and options, also where weights are packed."""

from __future__ import annotations

import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from ccs_broker.errors import ConfigurationError
from ccs_workers.engines.text import TextEngine
from ccs_workers.engines.text.loader import load_model
from ccs_workers.engines.text.packing import PackedLinear
from tests.engines.tiny import build, spec_of

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build("llama", tmp_path_factory.mktemp("llama"))


def rewritten(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_not_finite_are_refused(tmp_path):
    folder = build("llama", tmp_path)
    rewritten(folder, lambda weights: weights["model.layers.1.mlp.up_proj.weight"].fill_(torch.inf))
    with pytest.raises(ConfigurationError, match=r"layers\.1\.mlp\.up_proj\.weight.*finite"):
        load_model(spec_of(folder))


def test_weights_that_are_missing_are_refused(tmp_path):
    folder = build("llama", tmp_path)
    rewritten(folder, lambda weights: weights.pop("model.layers.0.self_attn.q_proj.weight"))
    with pytest.raises(ConfigurationError, match=r"lacks 1 .*q_proj"):
        load_model(spec_of(folder))


def test_weights_as_pickles_are_refused(tmp_path):
    folder = build("llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="can't be loaded"):
        load_model(spec_of(folder))


def test_a_truncated_file_is_refused(tmp_path):
    file = build("llama", tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ConfigurationError, match="can't be loaded"):
        load_model(spec_of(tmp_path))


def test_a_folder_that_isnt_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_model(spec_of(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kv_token": 5}, "'kv_token' is unknown.*kv_tokens"),
        ({"max_batch": 0}, "'max_batch' must be a whole number"),
        ({"max_batch": True}, "'max_batch' must be a whole number"),
        ({"chat": "yes"}, "'chat' must be true or false"),
        ({"system": ""}, "'system' must be a text"),
        ({"step_tokens": 4}, "'step_tokens' .* at least 'max_batch'"),
    ],
)
def test_options_are_checked(folder, options, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        TextEngine(spec_of(folder, options=options), lambda key, output: None)


def test_more_room_than_there_is_memory_is_refused(folder):
    engine = TextEngine(spec_of(folder, options={"kv_tokens": 10**10}), lambda key, output: None)
    with pytest.raises(ConfigurationError, match="kv_tokens"):
        engine.load()


def test_a_device_that_isnt_there_is_refused(folder):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigurationError, match="no CUDA device"):
        load_model(spec_of(folder, device="cuda"))


def test_models_loaded_by_several_threads_at_once_are_whole(folder, tmp_path):
    """Reports B14: loads that overlap leave weights untied for the life of the process."""
    folders = [folder, build("gpt2", tmp_path)]
    tie_weights = PreTrainedModel.tie_weights
    token = torch.zeros((1, 1), dtype=torch.long)
    with torch.inference_mode():
        expected = [AutoModelForCausalLM.from_pretrained(one)(token).logits for one in folders]
    found: list[tuple[int, torch.Tensor]] = []

    def load(which: int) -> None:
        for _ in range(3):
            model = load_model(spec_of(folders[which])).model
            with torch.inference_mode():
                found.append((which, model(token).logits))

    threads = [threading.Thread(target=load, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert all(torch.equal(logits, expected[which]) for which, logits in found)
    assert PreTrainedModel.tie_weights is tie_weights


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_packed_weights_give_the_same_scores(tmp_path, kind):
    spec = spec_of(build(kind, tmp_path))
    plain, packed = load_model(spec), load_model(spec, packed=True)
    assert isinstance(packed.model.lm_head, PackedLinear)
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        expected, found = plain.model(tokens).logits, packed.model(tokens).logits
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    # A tied weight is there twice: once as the embedding, once packed.
    tied = plain.model.lm_head.weight.numel() * 4 if plain.model.config.tie_word_embeddings else 0
    assert packed.weights_bytes == plain.weights_bytes + tied


@pytest.mark.parametrize("fault", ["raises", "other scores"])
def test_a_model_that_packing_changes_is_served_plain(folder, monkeypatch, caplog, fault):
    def forward(self, rows):
        if fault == "raises":
            raise AttributeError("weight")
        return rows.new_zeros(*rows.shape[:-1], self.out_features)

    monkeypatch.setattr(PackedLinear, "forward", forward)
    loaded = load_model(spec_of(folder), packed=True)
    assert not any(isinstance(module, PackedLinear) for module in loaded.model.modules())
    assert loaded.weights_bytes == load_model(spec_of(folder)).weights_bytes
    assert "stay unpacked" in caplog.text


def test_half_precision_is_never_packed(folder):
    loaded = load_model(spec_of(folder, dtype="bfloat16"), packed=True)
    assert not any(isinstance(module, PackedLinear) for module in loaded.model.modules())
