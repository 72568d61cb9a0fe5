"""What `import ccs_broker` costs a web service: little time, and nothing it doesn't need."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ccs_broker

#: What the client needs from others, and what comes beside that.
PROBE = """
import sys
import redis, redis.asyncio, hiredis, pydantic
class Model(pydantic.BaseModel): number: int = 0
needed = set(sys.modules)
from ccs_broker import AsyncClient, Client, Outcome
beside = {name for name in set(sys.modules) - needed if name.split(".")[0] not in ("ccs_broker", "pydantic")}
print(len(beside), *sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_importing_the_client_brings_nothing_that_it_does_not_need():
    run = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    beside, *packages = run.stdout.split()
    heavy = {"celery", "kombu", "torch", "transformers", "numpy", "click", "rich", "matplotlib", "PIL"}
    assert not heavy & set(packages)
    # Modules of Python itself; how long it takes is measured by hand, for the clock of a busy machine proves nothing.
    assert int(beside) < 10


def test_every_public_name_is_there():
    for name in ccs_broker.__all__:
        assert getattr(ccs_broker, name).__name__ == name
    assert set(ccs_broker.__all__) <= set(dir(ccs_broker))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = ccs_broker.Nonsense
