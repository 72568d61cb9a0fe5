"""What the GPU checks share: the reason to skip them, the device, and models made once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.about import cuda_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    listed = cuda_devices() if ours else ""
    if listed.startswith("none"):
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {listed}"))


@pytest.fixture(scope="session", autouse=True)
def _paths() -> Iterator[None]:
    """Engine processes find the packages without an installation too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(ROOT / "broker"), *([before] if before else [])]
    )
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session", autouse=True)
def _context() -> None:
    """Make this process's own CUDA context first: its memory is then the same in every reading."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device: {cuda_devices()}")
    torch.zeros(1, device="cuda").add_(1).item()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.gpu.models import TINY, build

    return build(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="session")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.gpu.models import MEDIUM, build

    return build(tmp_path_factory.mktemp("medium"), MEDIUM)
