"""Drawing tokens: the right distribution, and the same draw for the same seed and position."""

from __future__ import annotations

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from ccs_broker.contract import Sampling
from ccs_workers.engines.text.sampler import Draw, draw_token, gumbel_noise, penalized

pytestmark = pytest.mark.engines

SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def draw(seed: int = 5, **keys: object) -> Draw:
    return Draw.of(Sampling(**{"temperature": 1.0, **keys}), seed)


def counts(how: Draw, draws: int = 4000) -> torch.Tensor:
    tokens = torch.stack([draw_token(SCORES, how, position) for position in range(draws)])
    return torch.bincount(tokens, minlength=len(SCORES)) / draws


def warped(top_k: int | None, top_p: float | None, temperature: float) -> torch.Tensor:
    """The distribution as transformers' own processors make it."""
    scores = SCORES[None] / temperature
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.softmax(scores[0], dim=-1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (3, None), (None, 0.8), (4, 0.7), (1, None), (99, 1.0)]
)
def test_tokens_come_as_often_as_their_probability_says(temperature, top_k, top_p):
    found = counts(draw(temperature=temperature, top_k=top_k, top_p=top_p))
    expected = warped(min(top_k, 6) if top_k else None, top_p, temperature)
    assert torch.all(found[expected == 0] == 0)
    assert torch.allclose(found, expected, atol=0.03)


def test_the_smallest_nucleus_is_the_likeliest_token():
    assert counts(draw(top_p=1e-6), 50)[0] == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-6])
def test_the_coldest_draw_is_greedy(temperature):
    assert counts(draw(temperature=temperature), 50)[0] == 1


def test_a_nucleus_wider_than_the_likeliest_few_is_complete():
    flat = torch.zeros(5000)
    drawn = {int(draw_token(flat, draw(top_p=0.5), position)) for position in range(3000)}
    assert len(drawn) > 1200


def test_noise_depends_on_seed_position_and_token_alone():
    every = torch.arange(1000)
    noise = gumbel_noise(3, 7, every)
    assert torch.equal(gumbel_noise(3, 7, every[500:]), noise[500:])
    assert not torch.equal(gumbel_noise(4, 7, every), noise)
    assert not torch.equal(gumbel_noise(3, 8, every), noise)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_noise_is_gumbels(seed):
    noise = torch.cat([gumbel_noise(seed, position, torch.arange(10_000)) for position in range(10)])
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(1.6449, abs=0.05)
    # Neighboring positions and neighboring tokens have nothing to do with each other.
    rows = noise.view(10, 10_000)
    assert abs(torch.corrcoef(rows) - torch.eye(10)).max() < 0.05
    assert abs(torch.corrcoef(torch.stack([noise[:-1], noise[1:]]))[0, 1]) < 0.02


def test_greedy_draws_nothing():
    assert Draw.of(Sampling(top_k=3), 1) is None


@pytest.mark.parametrize("penalty", [0.1, 0.8, 1.3, 10.0])
def test_repeated_tokens_count_as_transformers_counts_them(penalty):
    seen = [0, 4, 4, 5, 0]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen]), SCORES[None].clone())[0]
    before = SCORES.clone()
    assert torch.equal(penalized(SCORES, seen, penalty), expected)
    assert torch.equal(before, SCORES)


def test_greedy_decoding_is_drawn_only_where_repetitions_count():
    assert Draw.of(Sampling(), 1) is None
    assert Draw.of(Sampling(repetition_penalty=1.2), 1).repetition_penalty == 1.2
