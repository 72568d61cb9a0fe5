"""The real models that ``ccs models prepare`` made: missing ones skip a test, and fail it where ``CI=true``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of prepared models, with its model file."""
    folder = Path(os.environ.get("CCS_TEST_MODELS", "~/.cache/ccs-workers/models")).expanduser()
    if not (folder / "models.toml").is_file():
        absent = f"no prepared models in {folder}; 'make models' fetches them"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    return folder
