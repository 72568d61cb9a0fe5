"""When two tokens count as equally good, and what of `verify` and the chaos benchmark goes by it."""

from __future__ import annotations

import pytest
import torch

from ccs_broker.contract import Sampling
from ccs_workers.engines.text.sampler import Draw, draw_token, gumbel_noise, penalized
from ccs_workers.verify.ties import TIE, TieJudge, shortfall
from tests.engines.tiny import Collector, build, spec_of

pytestmark = pytest.mark.engines

SCORES = torch.tensor([1.0, 3.0, 2.9995, 2.0, -1.0, 3.0 - 2e-3], dtype=torch.float64)
SAMPLED = [
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
]


def draw_of(**sampling: object) -> Draw:
    draw = Draw.of(Sampling.model_validate(sampling), 5)
    assert draw is not None
    return draw


def test_greedy_ties_are_of_the_two_best_alone():
    assert shortfall(SCORES, 1, None, 0) == 0
    assert 0 < shortfall(SCORES, 2, None, 0) < TIE
    assert shortfall(SCORES, 5, None, 0) > TIE
    assert shortfall(SCORES, 0, None, 0) == pytest.approx(2.0)


@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
def test_what_is_drawn_is_never_short_and_nothing_else_ties_by_chance(sampling):
    torch.manual_seed(3)
    draw = draw_of(**sampling)
    for position in range(20):
        scores = torch.randn(300, dtype=torch.float64) * 3
        drawn = int(draw_token(scores, draw, position))
        assert shortfall(scores, drawn, draw, position) == 0
        others = [token for token in range(0, 300, 3) if token != drawn]
        assert sum(shortfall(scores, token, draw, position) < TIE for token in others) <= 1


@pytest.mark.parametrize("sampling", SAMPLED, ids=str)
def test_whatever_rounding_makes_of_a_draw_ties(sampling):
    """Scores that are moved a little give another token only where both tie."""
    torch.manual_seed(4)
    draw, changed = draw_of(**sampling), 0
    for position in range(400):
        # Few scores near each other, and some equal: rounding decides often.
        scores = (torch.randn(40, dtype=torch.float64) * 3).round(decimals=0)
        moved = scores + (torch.rand(40, dtype=torch.float64) - 0.5) * 1e-4
        first, second = (int(draw_token(each, draw, position)) for each in (scores, moved))
        if first != second:
            changed += 1
            assert shortfall(scores, first, draw, position) < TIE
            assert shortfall(scores, second, draw, position) < TIE
    # Without a bound nothing but noise chooses among equals.
    assert changed or len(sampling) == 1


def test_a_token_beyond_a_bound_by_a_hair_may_be_let_in_and_one_further_beyond_may_not():
    near = torch.tensor([2.0, 1.0, 1.0 - 1e-5, -3.0], dtype=torch.float64)
    values = near + gumbel_noise(5, 7, torch.arange(4))
    expected = max(0.0, float(values[0] - values[2]))
    assert shortfall(near, 2, draw_of(temperature=1.0, top_k=2), 7) == pytest.approx(expected, abs=2 * TIE)
    assert shortfall(near, 3, draw_of(temperature=1.0, top_k=2), 7) == float("inf")
    halves = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    bound = draw_of(temperature=1.0, top_p=0.5)
    # Two of four equal ones are left, any two.
    assert all(shortfall(halves, token, bound, 7) < float("inf") for token in range(4))
    steep = torch.tensor([9.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert [shortfall(steep, token, bound, 7) for token in range(4)] == [0.0, *[float("inf")] * 3]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return spec_of(build("llama", tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
        {"repetition_penalty": 1.5},
        {"temperature": 0.7, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_a_real_answer_does_not_tie_with_another_token(tiny, sampling):
    from ccs_workers.engines.text import TextEngine

    collector = Collector()
    collector.engine = TextEngine(tiny, collector.emit)
    collector.engine.load()
    try:
        ids = collector.run("job", "some prompt", seed=3, max_new_tokens=12, **sampling)
    finally:
        collector.engine.close()
    judge, settings = TieJudge(tiny), Sampling.model_validate({"max_new_tokens": 12, **sampling})
    for place in (0, 5, 11):
        other = [*ids[:place], (ids[place] + 1) % 256, *ids[place + 1 :]]
        assert not judge.is_tie("some prompt", settings, 3, (other, ids))
    assert not judge.is_tie("some prompt", settings, 3, (ids[:4], ids))
    # What the engine drew is what the rule holds for the best one, at each place.
    loaded = judge._load()
    sequence = loaded.vocabulary.encode("some prompt")
    draw = Draw.of(settings, 3)
    for token in ids:
        with torch.inference_mode():
            scores = loaded.model(torch.tensor([sequence])).logits[0, -1].double()
        scores = penalized(scores, sequence, settings.repetition_penalty)
        assert shortfall(scores, token, draw, len(sequence)) < TIE
        sequence.append(token)
