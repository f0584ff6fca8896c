"""The jobs of a submission: nodes and processes of each, and the list of them in the submission's folder."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The processes of a job: one a GPU, or `tasks_per_node` of them where there are none."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int = 0

    @property
    def world(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def unit(self) -> str:
        return "gpus" if self.gpus_per_node else "tasks"

    @property
    def name(self) -> str:
        """Name of the job and of its run's folder, such as gpus-8."""
        return f"{self.unit}-{self.world}"


def shape_of(*, nodes: int | None, gpus_per_node: int, tasks_per_node: int | None) -> Shape:
    """The shape that the options ask for; one node where their number is open. Raises ValueError naming the option."""
    if nodes is not None and nodes < 1:
        raise ValueError(f"--nodes {nodes}: must be 1 or more")
    if gpus_per_node < 0:
        raise ValueError(f"--gpus-per-node {gpus_per_node}: must be 1 or more, or 0 on a cluster without GPUs")
    if tasks_per_node is not None and tasks_per_node < 1:
        raise ValueError(f"--tasks-per-node {tasks_per_node}: must be 1 or more")
    if not gpus_per_node and tasks_per_node is None:
        raise ValueError(
            "--gpus-per-node 0: says nothing of how many processes a node runs; on a cluster without GPUs add "
            "--tasks-per-node N"
        )
    if gpus_per_node and tasks_per_node not in (None, gpus_per_node):
        raise ValueError(
            f"--tasks-per-node {tasks_per_node}: each GPU has one process, so that {gpus_per_node} GPUs a node make "
            f"{gpus_per_node} tasks; leave --tasks-per-node out"
        )
    return Shape(nodes=nodes or 1, tasks_per_node=gpus_per_node or tasks_per_node or 1, gpus_per_node=gpus_per_node)


def sweep_of(text: str, full: Shape, *, most_nodes: int | None = None) -> list[Shape]:
    """One shape for each count of a sweep such as "gpus=1,2,4,8" (or "tasks=1,2" without GPUs), in the order given.

    full: the shape of a fully used node. most_nodes: what --nodes allows, None for any number.
    Raises ValueError naming the count that is no number, comes twice, or does not divide into whole nodes.
    """
    unit, each = full.unit, full.tasks_per_node
    name, equals, values = text.partition("=")
    if not equals or name.strip() not in ("gpus", "tasks"):
        raise ValueError(f"--sweep {text}: must read {unit}=1,2,4, the counts to train on")
    if name.strip() != unit:
        other = "the nodes have GPUs" if unit == "gpus" else "there are no GPUs without --gpus-per-node"
        raise ValueError(f"--sweep {text}: {other}; write --sweep {unit}={values}")
    shapes: list[Shape] = []
    for word in values.split(","):
        count = int(word) if word.strip().isascii() and word.strip().isdigit() else 0
        if count < 1:
            raise ValueError(f"--sweep {text}: {word.strip()!r} is no count; write whole numbers, as {unit}=1,2,4")
        nodes = -(-count // each)
        if count > each and count % each:
            lower = count // each * each
            raise ValueError(
                f"--sweep {text}: {count} does not divide into nodes of {each}; use {lower} or {lower + each}, or "
                f"another --{unit}-per-node"
            )
        if most_nodes is not None and nodes > most_nodes:
            raise ValueError(f"--sweep {text}: {count} takes {nodes} nodes, more than --nodes {most_nodes}")
        tasks_per_node = min(count, each)
        shape = Shape(
            nodes=nodes, tasks_per_node=tasks_per_node, gpus_per_node=tasks_per_node if full.gpus_per_node else 0
        )
        if shape in shapes:
            raise ValueError(f"--sweep {text}: {count} is there twice; leave one out")
        shapes.append(shape)
    return shapes
