"""The ranks of one host, started by Horovod's own launcher: its collectives need that."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hasten.distribute.launch import parent
from hasten.distribute.launch.command import print_error, stop_code
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import FOLDER, Record, read_record
from hasten.distribute.launch.watchdog import VARIABLE
from hasten.observe.rundir import LOGS


def launch(job: Job, command: Sequence[str], *, again: str, resume: str) -> int:
    """As `command.launch`, by horovodrun: on one host, without restarts.

    Raises ValueError where Horovod is not installed, or for options that it can't do.
    """
    program = _program(job)
    folder = job.out.absolute() / LOGS / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {FOLDER: str(folder), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    environment[parent.VARIABLE] = str(os.getpid())
    if job.stall_s is not None:
        environment[VARIABLE] = str(job.stall_s)
    options = ["-np", str(job.nproc), "--gloo", "--output-filename", str(folder)]
    process = subprocess.run([program, *options, sys.executable, *command], env=environment, check=False)
    records = {rank: read_record(folder / f"rank-{rank}.json") for rank in range(job.nproc)}
    present = {rank: record for rank, record in records.items() if record is not None}
    if process.returncode == 0:
        return stop_code(present)
    print_error(_report(present, folder, process.returncode, again=again, resume=resume))
    return 2 if any(record.kind == "mistake" for record in present.values()) else 1


def _program(job: Job) -> str:
    program = shutil.which("horovodrun") or shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    if program is None or importlib.util.find_spec("horovod") is None:
        raise ValueError("distribute.strategy=horovod: Horovod is not installed; `make horovod` builds it, or use ddp")
    if job.nnodes > 1 or job.max_restarts:
        raise ValueError(
            "distribute.strategy=horovod: --nnodes and --max-restarts are not for Horovod; start `hasten train` by "
            "`horovodrun -H HOST:N,...` yourself, and again with --resume after a failure"
        )
    return program


def _report(records: dict[int, Record], folder: Path, code: int, *, again: str, resume: str) -> str:
    failures = {rank: record for rank, record in records.items() if record.kind in ("mistake", "error", "memory")}
    if not failures:
        return (
            f"error: horovodrun ended with exit code {code}; logs: {folder}\ngo on: {resume}\nor start again: {again}"
        )
    rank, record = min(failures.items(), key=lambda item: (item[1].kind != "mistake", item[1].time))
    if record.kind == "mistake":
        return f"error: {record.message}"
    return f"error: rank {rank} on {record.host} failed first\n{record.traceback}logs: {folder}\ngo on: {resume}"
