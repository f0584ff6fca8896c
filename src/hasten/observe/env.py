"""The hardware and the package versions of a measurement."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import hasten
from hasten.observe.cores import usable_cores
from hasten.system import text_of

_VARIABLES = re.compile(r"(OMP|MKL|OPENBLAS)_NUM_THREADS|CUDA_VISIBLE_DEVICES|PYTORCH_.*|HASTEN_.*|SLURM_JOB_ID")
"""Environment variables that decide how a run goes."""
_FACTORS = ("torch", "monai", "numpy", "nibabel", "pytorch-ignite")
"""Packages that decide how a run goes."""
_COMPILERS = {
    "darwin": ("clang++", "xcode-select --install"),
    "win32": ("cl", "install Microsoft's C++ build tools, and work in their developer command prompt"),
}


def environment() -> dict[str, Any]:
    """Facts for env.json, all JSON-ready; unknown ones are None. Imports torch where it is installed."""
    memory = psutil.virtual_memory()
    return {
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "hasten": hasten.__version__,
        "git": _git(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores_usable": usable_cores(),
        "cores_logical": psutil.cpu_count(),
        "cores_physical": psutil.cpu_count(logical=False),
        "ram_bytes": memory.total,
        "ram_available_bytes": memory.available,
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
        "packages": {name: installed_version(name) for name in _FACTORS},
        "torch": _torch(),
        "gxx": _first_line("g++", "--version"),
        "variables": {name: value for name, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(name)},
    }


def _torch() -> dict[str, Any] | None:
    try:
        # By name at run time: `hasten.observe` itself must start without torch, which the import contracts check.
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cudnn": None,
        "driver": None,
        "devices": [],
    }
    if torch.cuda.is_available():
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["driver"] = driver_version()
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        facts["devices"] = [
            {"name": one.name, "memory_bytes": one.total_memory, "capability": f"{one.major}.{one.minor}"}
            for one in devices
        ]
    return facts


def _git() -> dict[str, Any] | None:
    """Commit of the checkout that hasten runs from; None for an installed copy."""
    root = Path(hasten.__file__).resolve().parents[2]
    # Only our own checkout: site-packages may lie inside somebody else's repository.
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return None
    commit = _first_line("git", "-C", str(root), "rev-parse", "HEAD")
    changed = _first_line("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return None if commit is None else {"commit": commit, "changed": bool(changed)}


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bf16 itself; without it torch emulates bf16, many times slower than float32."""
    return not cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16"))


def cpu_flags() -> set[str]:
    """Names of the processor's features, as Linux lists them; empty for another system's."""
    return set(_cpu_info("flags").split())


def _cpu_info(name: str) -> str:
    """What Linux says of the first processor under a name; empty on another system."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def driver_version() -> str | None:
    """Version of NVIDIA's driver, also in a container that was not given the GPUs; None where there is none."""
    match = re.search(r"Kernel Module\D*([\d.]+)", text_of(Path("/proc/driver/nvidia/version")))
    if match:
        return match[1]
    return _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or None


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def usual_compiler() -> tuple[str, str]:
    """Name of the C++ compiler that torch.compile calls here unless CXX names one, and how to get it."""
    return _COMPILERS.get(sys.platform, ("g++", "apt-get install g++ or conda install cxx-compiler"))


def cxx_compiler() -> str | None:
    """Path of the C++ compiler that torch.compile calls, None if it is not installed."""
    return shutil.which(os.environ.get("CXX", usual_compiler()[0]))


def _first_line(*command: str) -> str | None:
    """First line that a command prints, "" if nothing; None if it is missing or fails."""
    try:
        process = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(process.stdout.decode(errors="replace").splitlines()), "").strip()
