"""The built wheel: two packages and nothing else, with all their files, and a client that needs no torch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.source import PACKAGES, ROOT
from tests.test_architecture import HEAVY

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

USE_INSTALLED = """
import sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import ccs_broker
from ccs_broker.cli import main
print(ccs_broker.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        check=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_only_the_two_packages_stand_at_the_top_level(wheel_files):
    top = {name.split("/")[0] for name in wheel_files}
    assert top == {"ccs_broker", "ccs_workers", f"ccs_workers-{PROJECT['version']}.dist-info"}


def test_every_file_of_the_packages_is_inside(wheel_files):
    """Scripts, model files, samples, licences and type markers, not only modules."""
    wanted = {
        f"{folder.name}/{path.relative_to(folder).as_posix()}"
        for folder in PACKAGES
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= wheel_files
    assert {Path(name).suffix for name in wanted} >= {".py", ".lua", ".toml", ".typed"}


def test_the_license_travels_along(wheel_files):
    assert f"ccs_workers-{PROJECT['version']}.dist-info/licenses/LICENSE" in wheel_files


def test_an_installed_wheel_serves_the_client_without_the_workers_extra(wheel: Path, tmp_path: Path):
    """With the base dependencies at hand and all others blocked; the wheel's own copy is what is imported."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", tmp_path]
    subprocess.run([*pip, wheel], capture_output=True, check=True)
    run = subprocess.run(
        [sys.executable, "-c", USE_INSTALLED, tmp_path, ",".join(HEAVY)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).is_relative_to(tmp_path)


def test_the_base_install_is_light():
    names = {requirement.split(">")[0].split("[")[0] for requirement in PROJECT["dependencies"]}
    assert names == {"celery", "click", "hiredis", "kombu", "pydantic", "redis", "rich"}


def test_ranges_in_the_project_and_pins_in_the_constraints():
    extras = PROJECT["optional-dependencies"].values()
    requirements = [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]
    assert not [line for line in requirements if "==" in line or "torchvision" in line]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all("==" in line for line in pins)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    named = {line.split(">")[0].split("[")[0].lower() for line in requirements}
    assert named - pinned == {"ccs-workers"}


def test_the_changelog_begins_with_this_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].split()[1] == f"[{PROJECT['version']}]"
