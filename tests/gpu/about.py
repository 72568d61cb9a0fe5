"""Prints chip, driver and versions; ends with 1 where a library is missing. Run as ``python -m tests.gpu.about``."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

#: Import name and distribution of all that the checks need beside the repository.
NEEDED = {
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "pydantic": "pydantic",
    "psutil": "psutil",
    "pytest": "pytest",
}
QUERY = "name,driver_version,memory.total,memory.used,mig.mode.current,ecc.mode.current"


def cuda_devices() -> str:
    """The CUDA devices as the driver lists them, or why there are none."""
    try:
        found = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"none (nvidia-smi: {type(error).__name__})"
    told = (found.stdout or found.stderr).strip()
    return told if found.returncode == 0 and told else f"none (nvidia-smi: {told or found.returncode})"


def main() -> int:
    print(f"device: {cuda_devices()}")
    print(f"python: {platform.python_version()} on {platform.platform()} ({sys.executable})")
    missing = []
    for module, distribution in NEEDED.items():
        try:
            import_module(module)
            print(f"{distribution}: {version(distribution)}")
        except (ImportError, PackageNotFoundError):
            missing.append(distribution)
            print(f"{distribution}: missing")
    try:
        print(f"nvidia-ml-py: {version('nvidia-ml-py')}")
    except PackageNotFoundError:
        print("nvidia-ml-py: missing (checks of memory will be skipped)")
    if missing:
        print(f"install what is missing: pip install {' '.join(missing)}")
        return 1
    import torch

    print(f"CUDA of torch: {torch.version.cuda}, sees a device: {torch.cuda.is_available()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
