"""NVML that is missing, broken, or somebody else's: the reason is told, and nothing is raised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.nvml_stub import SOURCE, Question, StubNvml, compiler, gpu

ROOT = SOURCE.parent.parent.parent
HEALTHY = [gpu("GPU-a")]


def _asked(tmp_path, **environ):
    """Auto and a named device where NVML can't be had, with ``environ`` making it so."""
    nothing = StubNvml(tmp_path / "no-library")
    return nothing.ask(
        tmp_path,
        Question(gpus=HEALTHY, wish="auto"),
        Question(gpus=HEALTHY, wish="cuda:1"),
        Question(gpus=HEALTHY, wish="cuda", driver=False),
        **environ,
    )


def _check(answers, reason):
    auto, named, driverless = answers
    assert auto.device["kind"] == "cpu"
    assert any(line.startswith("INFO running on the CPU: NVML") and reason in line for line in auto.logged)
    assert named.memory == (None, None, None)
    assert reason in named.reading["reason"]
    assert reason in driverless.error
    assert "no NVIDIA driver is loaded" in driverless.error


def test_no_library(tmp_path):
    if any(path.exists() for path in _system_libraries()):
        pytest.skip("this machine has an NVIDIA driver")
    _check(_asked(tmp_path), "Library Not Found")


def _system_libraries():
    listing = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return [SOURCE] if "libnvidia-ml.so.1" in listing else []


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF and then nothing"])
def test_a_broken_library(tmp_path, content):
    (tmp_path / "no-library").mkdir()
    (tmp_path / "no-library/libnvidia-ml.so.1").write_bytes(content)
    _check(_asked(tmp_path), "Library Not Found")


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_library_without_the_functions(tmp_path):
    """Such as one of the wrong age: whatever is missing is unknown."""
    (tmp_path / "no-library").mkdir()
    source = tmp_path / "empty.c"
    source.write_text("int nothing(void) { return 0; }\n")
    subprocess.run(
        [str(compiler()), "-shared", "-fPIC", "-o", tmp_path / "no-library/libnvidia-ml.so.1", source],
        check=True,
    )
    _check(_asked(tmp_path), "Function Not Found")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("", "nvmlInit"),
        ("raise ImportError('not for this Python')", "not for this Python"),
        ("raise RuntimeError('no GPU, no import')", "isn't that of nvidia-ml-py: RuntimeError"),
        ("print 'written for Python 2'", "isn't that of nvidia-ml-py: SyntaxError"),
        ("def nvmlInit(): pass\ndef nvmlDeviceGetCount(handle): return 1", "nvmlDeviceGetCount"),
        ("class NVMLError(Exception): pass\ndef nvmlInit(): raise NVMLError('of its own')", "of its own"),
    ],
)
def test_a_module_of_that_name_that_is_not_nvidias(tmp_path, module, reason):
    path = tmp_path / "foreign"
    path.mkdir()
    (path / "pynvml.py").write_text(module)
    _check(_asked(tmp_path, PYTHONPATH=str(path)), reason)


def test_a_rival_of_the_package_is_named(stub, tmp_path):
    rival = tmp_path / "rival/pynvml-11.5.0.dist-info"
    rival.mkdir(parents=True)
    (rival / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.0\n")
    (answer,) = stub.ask(tmp_path, Question(gpus=HEALTHY), PYTHONPATH=str(rival.parent))
    assert answer.uuid == "GPU-a"
    assert any(
        line.startswith("WARNING pynvml installs a module pynvml as nvidia-ml-py") for line in answer.logged
    )


IMPORTS = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
from ccs_workers.devices import find_device
reading = find_device("auto", {}).read([1])
print(reading.total_bytes is None, reading.used_bytes is None, reading.reason)
print([name for name in ("pynvml", "torch") if sys.modules.get(name)])
"""


def _imported(*without):
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS, ",".join(without)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_the_room_works_without_the_worker_extra():
    assert _imported("pynvml", "torch") == ["False False ", "[]"]
    assert _imported("pynvml", "torch", "psutil") == [
        "True True the machine's memory can't be read: ModuleNotFoundError",
        "[]",
    ]


def test_nothing_is_loaded_by_the_import_itself():
    code = "import sys, ccs_workers.devices as d; print([n for n in ('pynvml', 'psutil', 'torch') if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
