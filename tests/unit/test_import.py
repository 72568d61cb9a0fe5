"""What `import ccs_broker` costs a web service: little time, and nothing it doesn't need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ccs_broker

PROBE = """
import sys, time
begun = time.perf_counter()
import ccs_broker
from ccs_broker import AsyncClient, Client, Outcome
print(time.perf_counter() - begun)
print(sorted({"celery", "kombu", "torch", "transformers", "numpy", "click", "rich"} & set(sys.modules)))
"""


def test_importing_the_client_is_quick_and_light():
    def probe():
        run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
        seconds, loaded = run.stdout.splitlines()
        assert loaded == "[]"
        return float(seconds)

    # The best of a few, for the machine may be busy.
    assert min(probe() for _ in range(3)) < 0.5


def test_every_public_name_is_there():
    for name in ccs_broker.__all__:
        assert getattr(ccs_broker, name).__name__ == name
    assert set(ccs_broker.__all__) <= set(dir(ccs_broker))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = ccs_broker.Nonsense
