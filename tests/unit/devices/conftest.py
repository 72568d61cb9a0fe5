"""The stub of NVIDIA's library, compiled once."""

from __future__ import annotations

import pytest

from tests.nvml_stub import StubNvml, compiler


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubNvml:
    if compiler() is None:
        pytest.skip("no C compiler to build the stub of libnvidia-ml with")
    return StubNvml.build(tmp_path_factory.mktemp("nvml"))
