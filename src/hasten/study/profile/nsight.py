"""The command that has Nsight Systems look at the same steps."""

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
        "nsys", "profile", "-t", "cuda,nvtx,osrt,cudnn", "-o", str(out / REPORT), "--force-overwrite=false",
        "-e", "HASTEN_NVTX=1", *_ourselves(), "profile", *arguments, "--out", str(out),
    ]  # fmt: skip


def _ourselves() -> list[str]:
    """The command that this process was started by, if it can be: `nsys` must find the same installation."""
    script = Path(sys.executable).with_name("hasten")
    return [str(script)] if script.exists() else [sys.executable, "-m", "hasten"]


def run_nsight(command: Sequence[str]) -> int | None:
    """Its exit code; None where `nsys` is not on the PATH and nothing was run."""
    if shutil.which(command[0]) is None:
        return None
    return subprocess.run(list(command), check=False).returncode
