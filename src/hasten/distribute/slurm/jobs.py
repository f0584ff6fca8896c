"""The jobs of a submission, as its folder remembers them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.observe.rundir import write_json

FOLDER = "slurm"
"""Folder below --out that holds batch scripts, settings, logs and the list of the jobs."""
JOBS_JSON = "jobs.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """One job, which is one training in the folder `name` below the submission's."""

    name: str
    world: int
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    strategy: str
    seed: int
    mode: str
    """`strong`: every job has the same batch; `weak`: it grows with the processes."""
    digest: str = ""
    """SHA-256 of the batch script as it was written."""
    job_id: str | None = None
    """SLURM's job number; None if it was not submitted."""


def script_path(out: Path, name: str) -> Path:
    return out / FOLDER / f"{name}.sbatch"


def settings_path(out: Path, name: str) -> Path:
    return out / FOLDER / f"{name}.yaml"


def write_jobs(out: Path, jobs: Sequence[SlurmJob]) -> None:
    write_json(out / FOLDER / JOBS_JSON, {"jobs": [dataclasses.asdict(job) for job in jobs]})


def read_jobs(out: Path) -> list[SlurmJob]:
    """The jobs of the submission in `out`, with the numbers of those that were submitted by hand with sbatch.

    Raises ValueError if there is no submission, or its list is damaged.
    """
    path = out / FOLDER / JOBS_JSON
    if not path.is_file():
        raise ValueError(
            f"{out}: holds no submission ({FOLDER}/{JOBS_JSON} is missing); `hasten slurm submit` makes one"
        )
    try:
        jobs = [_job(fields) for fields in json.loads(path.read_text(encoding="utf-8"))["jobs"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(
            f"{path}: can't be read ({type(error).__name__}: {error}); the jobs' numbers stand in the names of the "
            "logs beside it"
        ) from None
    return [dataclasses.replace(job, job_id=_last_id(out, job)) for job in jobs]


def _job(fields: Any) -> SlurmJob:
    job = SlurmJob(**fields)
    for field in dataclasses.fields(SlurmJob):
        kind: Any = int if field.type == "int" else str
        value = getattr(job, field.name)
        if not isinstance(value, kind) and not (field.name == "job_id" and value is None):
            raise TypeError(f"{field.name} is {value!r}")
    return job


def _last_id(out: Path, job: SlurmJob) -> str | None:
    """The job's newest number, which it writes when it starts; a newer one than ours if it was resubmitted by hand."""
    try:
        job_id = (out / FOLDER / f"{job.name}.jobid").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return job.job_id
    if not job_id.isdigit():
        return job.job_id
    return job_id if job.job_id is None or int(job_id) > int(job.job_id) else job.job_id
