"""The command that profiles the same steps with Nsight Systems."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPORT = "nsight"


def nsight_command(arguments: Sequence[str], out: Path) -> list[str]:
    """`nsys profile ...` around `hasten profile` with these arguments; its report becomes OUT/nsight.nsys-rep."""
    return [
        "nsys",
        "profile",
        "-t",
        "cuda,nvtx,osrt,cudnn",
        "-o",
        str(out / REPORT),
        "--force-overwrite=false",
        "-e",
        "HASTEN_NVTX=1",
        *_ourselves(),
        "profile",
        *arguments,
        "--out",
        str(out),
    ]


def _ourselves() -> list[str]:
    """The command line of this installation, which `nsys` must run."""
    script = Path(sys.executable).with_name("hasten")
    return [str(script)] if script.exists() else [sys.executable, "-m", "hasten"]


def run_nsight(command: Sequence[str]) -> int | None:
    """Run the command and return its exit code; None if `nsys` is not on the PATH."""
    if shutil.which(command[0]) is None:
        return None
    return subprocess.run(list(command), check=False).returncode
