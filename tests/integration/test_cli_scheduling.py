"""The commands about who runs next, on a real server: reprioritize, tenants, and a submission's wish for overload."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ccs_broker.cli.group import ccs


@pytest.fixture
def run(redis_url, monkeypatch):
    """Run a command against this test's server."""
    monkeypatch.setenv("CCS_REDIS_URL", redis_url)

    def invoke(*arguments):
        return CliRunner().invoke(ccs, [str(argument) for argument in arguments])

    return invoke


def test_reprioritize_moves_a_job(run):
    first, second = (run("submit", "text", "x", "--tenant", t, "--qos", "batch").stdout.strip() for t in "ab")
    shown = json.loads(run("reprioritize", second, "--qos", "realtime", "--deadline", "30s", "--json").stdout)
    assert (shown["id"], shown["qos"], shown["position"], shown["estimate_s"]) == (second, "realtime", 0, 0.0)
    assert "batch" in run("status", first).stdout
    assert "interactive" in run("reprioritize", first, "--qos", "interactive").stdout
    assert run("reprioritize", first).exit_code == 2
    run("cancel", first)
    refused = run("reprioritize", first, "--qos", "batch", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["error"]["code"]) == (1, "CONFLICT")
    told = run("reprioritize", first, "--qos", "batch").stderr
    assert "only a job that waits can be moved" in told
    assert "--idempotency-key" not in told


def test_tenants_are_shown_and_weighed(run):
    assert "no tenant" in run("tenants").stdout
    run("submit", "text", "x", "--tenant", "acme")
    assert run("tenants", "set", "acme", "3").stdout == "acme: weight 3\n"
    assert [line.split() for line in run("tenants").stdout.splitlines()] == [
        ["tenant", "weight", "waiting"],
        ["acme", "3", "1"],
    ]
    assert json.loads(run("tenants", "--json").stdout) == {
        "tenants": [{"name": "acme", "weight": 3.0, "waiting": 1}]
    }
    assert json.loads(run("tenants", "set", "acme", "1", "--json").stdout) == {
        "tenant": "acme",
        "weight": 1.0,
    }
    for wrong in (("acme", "0"), ("a b", "1"), ("acme", "much")):
        assert run("tenants", "set", *wrong).exit_code == 2


@pytest.mark.parametrize("name", ["a b", "", "x" * 129, "-a"])
def test_the_rule_for_a_tenant_s_name_is_told_in_one_wording(run, name):
    set_one = run("tenants", "set", "--", name, "2").stderr
    submitted = run("submit", "text", "x", "--tenant", name).stderr
    assert "TENANT: should be 1 to 128 letters, digits or any of . _ : @ / -, the first a letter" in set_one
    assert set_one.replace("TENANT", "--tenant") == submitted


def test_the_rule_for_a_weight_is_told_as_for_any_number(run):
    assert "should be a number from 0.001 to 1000, not '5000'" in run("tenants", "set", "a", "5000").stderr


def test_a_job_that_would_be_late_is_refused_where_that_is_wished(run):
    for _ in range(6):
        run("submit", "text", "x", "--qos", "realtime", "--overload", "accept")
    refused = run("submit", "text", "x", "--qos", "realtime", "--overload", "refuse", "--json")
    error = json.loads(refused.stdout)["error"]
    assert (refused.exit_code, error["code"]) == (1, "DEADLINE_UNREACHABLE")
    assert "after 1.250 s, its target is 1 s" in error["message"]
