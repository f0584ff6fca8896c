"""SLURM's commands: submitting a job, and querying the states of jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 300
"""Timeout. SLURM's commands retry for a minute or two while the controller is away, and give up by themselves."""
ACTIVE = frozenset(
    ("pending", "running", "completing", "configuring", "suspended", "requeued", "requeue_hold", "requeue_fed",
     "resizing", "signaling", "stage_out", "stopped", "special_exit")
)  # fmt: skip
"""States of a job that may still run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStates:
    """What SLURM knows of jobs."""

    states: Mapping[str, str] = field(default_factory=dict)
    """The state of each known job, in lower case."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a job waits."""
    notes: tuple[str, ...] = ()
    """Queries that failed, a sentence each."""


def require_sbatch() -> None:
    """Raise ValueError where there is no sbatch."""
    if shutil.which("sbatch") is None:
        raise ValueError(
            "sbatch is not on PATH: run this on a login node of the cluster, or add --dry-run to write the files only"
        )


def submit_script(script: Path) -> str:
    """Submit a batch script; the job's number. Raises ValueError naming the script with sbatch's own message."""
    process = _run("sbatch", "--parsable", str(script))
    # "123", or "123;cluster" of several clusters.
    number = process.stdout.strip().partition(";")[0].rpartition("\n")[2]
    if process.returncode == 0 and number.isdigit():
        return number
    message = " ".join((process.stderr.strip() or process.stdout.strip() or "no message").split())
    raise ValueError(f"{script}: sbatch refused it: {message.removeprefix('sbatch: ').removeprefix('error: ')}")


def query(ids: Sequence[str]) -> JobStates:
    """The states of jobs: of the queue, and of the accounting for those that have left it, where there is one."""
    if not ids:
        return JobStates()
    if shutil.which("squeue") is None:
        return JobStates(notes=("squeue is not on PATH, so that only what the runs wrote themselves is known.",))
    states: dict[str, str] = {}
    reasons: dict[str, str] = {}
    notes: list[str] = []
    queued = _run("squeue", "--noheader", "--states=all", f"--jobs={','.join(ids)}", "--format=%i|%T|%r")
    for number, state, reason in _rows(queued.stdout, 3):
        states[number], reasons[number] = state.lower(), reason
    # It is not a failure if the only job that is queried has left the queue.
    if queued.returncode and "Invalid job id" not in queued.stderr:
        notes.append(f"squeue: {_first(queued.stderr)}.")
    missing = [number for number in ids if number not in states]
    if missing and shutil.which("sacct") is not None:
        past = _run("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(missing)}",
                    "--format=JobID,State")  # fmt: skip
        for number, state in _rows(past.stdout, 2):
            # "CANCELLED by 1000"
            states.setdefault(number, state.split()[0].lower() if state.split() else "unknown")
        if past.returncode:
            notes.append(f"sacct: {_first(past.stderr)}; jobs that have left the queue are judged by their files.")
    return JobStates(states=states, reasons=reasons, notes=tuple(notes))


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [line.strip().split("|", columns - 1) for line in text.splitlines()]
    return [row for row in rows if len(row) == columns and re.fullmatch(r"\d+", row[0])]


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[0].rstrip(".")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"did not answer within {_SECONDS} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"can't be started ({error.strerror})")
