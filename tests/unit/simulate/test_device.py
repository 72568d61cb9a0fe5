"""The device model against values computed by hand."""

from __future__ import annotations

import json

import pytest

from ccs_broker.contract.words import QosClass
from ccs_broker.errors import ConfigurationError
from ccs_broker.simulate.device import Device
from ccs_broker.simulate.model import REFERENCE, Demand, DeviceModel


def demand(encode_s=0.0, context=0, new=1):
    return Demand(encode_s=encode_s, context_tokens=context, new_tokens=new)


def run_out(device, limit=10_000):
    """Step until the device is empty: (end time, run keys that began, run keys that ended) per iteration."""
    now, seen = 0.0, []
    while len(device):
        step = device.step()
        now += step.seconds
        seen.append((now, [run.key for run in step.first], [run.key for run in step.ended]))
        assert len(seen) < limit
    return seen


def test_a_text_job_alone_takes_its_prefill_and_then_one_iteration_a_token():
    """3,000 tokens: 2,048 and 952 in two iterations; then two more tokens."""
    device = Device(REFERENCE)
    run = device.add("a", demand(context=3000, new=3))
    assert [device.step().seconds for _ in range(2)] == pytest.approx(
        [0.010 + 2048 * 6e-5, 0.010 + 952 * 6e-5]
    )
    assert run.first_device_s == pytest.approx(0.020 + 0.18)
    assert REFERENCE.alone_s(demand(context=3000)) == pytest.approx(0.20)
    steps = [device.step() for _ in range(2)]
    assert [step.seconds for step in steps] == pytest.approx([0.01008, 0.01008])
    assert [run.key for run in steps[1].ended] == ["a"]
    assert (run.generated, len(device)) == (3, 0)
    assert run.device_s == pytest.approx(0.2 + 2 * 0.01008)


def test_prefill_begins_in_the_iteration_that_ends_the_encoding():
    """Ten images: 0.064 s and 0.016 s; the second iteration prefills too, and 2,100 tokens need a third."""
    device = Device(REFERENCE)
    seconds = [0.010 + 0.064, 0.010 + 0.016 + 2048 * 6e-5, 0.010 + 52 * 6e-5]
    asked = REFERENCE.demand(images=10, context_tokens=2100)
    device.add("v", asked)
    ends = run_out(device)
    assert [end for end, _, _ in ends] == pytest.approx([sum(seconds[: n + 1]) for n in range(3)])
    assert ends[-1][1:] == (["v"], ["v"])
    assert REFERENCE.alone_s(asked) == pytest.approx(sum(seconds))


def test_exactly_full_budgets_take_no_further_iteration():
    asked = REFERENCE.demand(images=8, context_tokens=2048)
    device = Device(REFERENCE)
    device.add("v", asked)
    assert len(run_out(device)) == 1
    assert REFERENCE.alone_s(asked) == pytest.approx(0.010 + 0.064 + 2048 * 6e-5)


def test_who_has_no_token_yet_is_served_in_order_of_score():
    device = Device(REFERENCE)
    device.add("slow", demand(context=4096), score=2.0)
    device.add("quick", demand(context=1000), score=1.0)
    device.add("second", demand(context=100), score=2.0)
    seen = run_out(device)
    # 1,000 + 1,048 | 2,048 | 1,000 + 100
    assert [first for _, first, _ in seen] == [["quick"], [], ["slow", "second"]]


def test_a_job_of_the_floor_has_a_tenth_of_each_iteration():
    device = Device(REFERENCE)
    device.add("urgent", demand(context=2048 * 9), score=1.0)
    floor = device.add("aged", demand(context=1020), score=9.0, floor=True)
    device.step()
    assert floor.prefill_tokens == 1020 - 204
    firsts = [first for _, first, _ in run_out(device)]
    # 204 tokens an iteration; the urgent one is through with its tenth, which then has room for it.
    assert firsts.index(["aged"]) == 3


def test_decoding_sequences_slow_each_other_and_share_the_base():
    device = Device(REFERENCE)
    runs = [device.add(str(number), demand(context=10, new=5)) for number in range(4)]
    device.step()
    assert device.step().seconds == pytest.approx(0.010 + 4 * 8e-5)
    run_out(device)
    assert [run.device_s for run in runs] == pytest.approx([0.05 / 4 + 10 * 6e-5 + 4 * 8e-5] * 4)


def test_device_time_adds_up_to_the_time_that_passed():
    device = Device(REFERENCE)
    runs = [
        device.add(str(n), demand(0.003 * n, 300 * n, 1 + 7 * n), score=-n, floor=n == 3) for n in range(12)
    ]
    end_s = run_out(device)[-1][0]
    assert sum(run.device_s for run in runs) == pytest.approx(end_s)


def test_skipping_a_stretch_is_stepping_through_it():
    stepped, skipped = Device(REFERENCE), Device(REFERENCE)
    for device in (stepped, skipped):
        device.add("a", demand(context=10, new=50))
        device.add("b", demand(context=10, new=80))
        device.step()
    seconds = sum(stepped.step().seconds for _ in range(49))
    assert skipped.stretch() == 49
    step = skipped.skip(49)
    assert step.seconds == pytest.approx(seconds)
    assert [run.key for run in step.ended] == ["a"]
    assert step.ended[0].device_s == pytest.approx(seconds / 2 + (0.010 / 2 + 10 * 6e-5))
    assert skipped.stretch() == 30
    skipped.add("c", demand(context=10))
    assert skipped.stretch() == 0


def test_a_job_taken_off_knows_what_it_got_and_goes_on_elsewhere():
    device = Device(REFERENCE)
    run = device.add("a", demand(context=10, new=50))
    for _ in range(20):
        device.step()
    device.remove(run)
    assert (run.generated, len(device), device.stretch()) == (20, 0, 0)
    again = device.add("a", demand(context=10, new=50), generated=run.generated)
    assert again.prefill_tokens == 30
    assert len(run_out(device)) == 30
    assert again.generated == 50


def test_the_engine_sees_every_token():
    device = Device(REFERENCE)
    device.add("a", demand(context=10, new=3))
    seen = []
    while len(device):
        step = device.step()
        seen.append({run.key: run.generated for run in (*device.decoding(), *step.ended)})
    assert seen == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_device_file_holds_what_differs_from_the_reference(tmp_path):
    path = tmp_path / "device.json"
    path.write_text(
        json.dumps({"about": "half", "kv_tokens": 50_000, "targets_first_output_s": {"realtime": 0.5}})
    )
    model = DeviceModel.from_file(path)
    assert (model.kv_tokens, model.max_sequences) == (50_000, 48)
    assert model.targets_first_output_s[QosClass.REALTIME] == 0.5
    assert model.targets_first_output_s[QosClass.BATCH] == 600.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "device file"),
        ("[1]", "not a JSON object"),
        ('{"kv_token": 1}', "unknown kv_token"),
        ('{"kv_tokens": 1.5}', "kv_tokens: must be a whole number above 0"),
        ('{"iteration_base_s": 0}', "iteration_base_s: must be a number above 0"),
        ('{"iteration_base_s": NaN}', "iteration_base_s: must be a number above 0"),
        ('{"targets_first_output_s": {"soon": 1}}', "maps realtime, interactive, standard, batch to seconds"),
        ('{"targets_first_output_s": {"batch": true}}', "batch: must be a number above 0"),
    ],
)
def test_a_wrong_device_file_is_refused_with_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "device.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        DeviceModel.from_file(path)


def test_a_device_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        DeviceModel.from_file(tmp_path / "none.json")
