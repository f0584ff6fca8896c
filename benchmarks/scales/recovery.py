"""How long a job of two processes is out of step when one of them is killed."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from hasten.observe.rundir import LOGS, RANKS, read_jsonl
from hasten.phantoms.organs import write_phantoms

_STEPS = 1200
"""Longer than all kills take; a line is logged every 6 steps."""
_SETTINGS = (
    "sample.patch=[16,16,16]", "sample.batch_size=4", "network.channels=[4,8]",
    "network.strides=[[2,2,2]]", "train.compile=false", "train.device=cpu", "train.precision=fp32",
    "train.checkpoint_every=5", f"train.validate_every={_STEPS}", f"train.steps={_STEPS}", "observe.trackers=[]",
)  # fmt: skip
_PATIENCE_S = 120.0


def recovery(kills: int = 5) -> dict[str, Any]:
    """Seconds from each SIGKILL of rank 1 to the first logged step after it, of a tiny run on this machine.

    `noticed` is the part of them until rank 0 was started again, which includes ending it; the rest is importing,
    planning, meeting and loading the checkpoint, as at any start. Raises RuntimeError where the job ends before that.
    """
    seconds: list[float] = []
    noticed: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_phantoms(folder / "data", num_cases=6, shape=(20, 24, 24))
        launcher = _start(folder, kills)
        try:
            lines = _waited(launcher, partial(_more, folder, 0))
            for number in range(1, kills + 1):
                # Some steps in a row, so that there is a checkpoint to go on from.
                _waited(launcher, partial(_more, folder, lines + 2))
                began = time.perf_counter()
                os.kill(_rank(launcher.pid, 1), signal.SIGKILL)
                _waited(launcher, partial(_logs, folder, number))
                noticed.append(time.perf_counter() - began)
                held = len(_steps(folder))
                _waited(launcher, partial(_more, folder, held))
                seconds.append(time.perf_counter() - began)
                lines = held + 1
        finally:
            launcher.terminate()
            launcher.wait(_PATIENCE_S)
    return {
        "seconds": seconds,
        "noticed_seconds": noticed,
        "median_s": statistics.median(seconds),
        "noticed_median_s": statistics.median(noticed),
    }


def _start(folder: Path, kills: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "HASTEN_CACHE": str(folder / "cache")}
    command = ["launch", "--nproc", "2", "--max-restarts", str(kills), "--quiet", "--out", str(folder / "out")]
    return subprocess.Popen(
        [sys.executable, "-m", "hasten", *command, str(folder / "data"), *_SETTINGS],
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def _steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_jsonl(folder / "out" / RANKS / "rank-0.jsonl")]


def _more(folder: Path, than: int) -> int:
    """Steps logged, if there are more than that; else 0."""
    result = len(_steps(folder))
    return result if result > than else 0


def _logs(folder: Path, start: int) -> list[Path]:
    return list(folder.glob(f"out/{LOGS}/*/rank-0.{start}.log"))


def _rank(launcher: int, rank: int) -> int:
    """Its process id."""
    for process in psutil.Process(launcher).children():
        if process.environ().get("RANK") == str(rank):
            return process.pid
    raise RuntimeError(f"rank {rank} is not running")


def _waited(launcher: subprocess.Popen[bytes], look: Callable[[], Any]) -> Any:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        result = look()
        if result:
            return result
        if launcher.poll() is not None:
            raise RuntimeError(f"the job ended with exit code {launcher.returncode}")
        time.sleep(0.005)
    raise RuntimeError(f"nothing happened for {_PATIENCE_S:g} s")
