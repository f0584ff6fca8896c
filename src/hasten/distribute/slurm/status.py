"""The states of a submission's jobs, and the results of their runs for the scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.distribute.slurm.jobs import FOLDER, SlurmJob
from hasten.distribute.slurm.queue import ACTIVE, JobStates, query
from hasten.observe.monitor.watch import View, view_of

DONE = ("finished", "target_reached", "time_up")
"""Statuses of a run with nothing left to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """A job, its state and the progress of its run."""

    job: SlurmJob
    state: str
    """How the run ended if it is complete; else SLURM's state in lower case; else the state by the run's files."""
    reason: str = ""
    """Why it waits, in SLURM's words."""
    view: View | None = None
    """The run's own files. Its time is that of all starts up to its last line, without the time in the queue."""
    fruitless: int = 0
    """Starts in a row that saved no new step."""

    @property
    def is_done(self) -> bool:
        return self.state in DONE


def job_statuses(out: Path, jobs: Sequence[SlurmJob]) -> tuple[list[JobStatus], JobStates]:
    """The status of every job in the order of `jobs`, and SLURM's answer."""
    answer = query([job.job_id for job in jobs if job.job_id is not None])
    return [_job_status(out, job, answer) for job in jobs], answer


def scale_json(statuses: Sequence[JobStatus]) -> dict[str, Any]:
    """The content of scale.json: the runs for `hasten scale analyse`, folders relative to the submission's."""
    return {
        "runs": [
            {
                "world": each.job.world,
                "strategy": each.job.strategy,
                "seed": each.job.seed,
                "mode": each.job.mode,
                "folder": each.job.name,
                "status": each.state,
                "nodes": each.job.nodes,
                "job_id": each.job.job_id,
            }
            for each in statuses
        ]
    }


def is_active(state: str) -> bool:
    """Whether a job in that state may still run without further action."""
    return state in ACTIVE or state == "silent"


def _job_status(out: Path, job: SlurmJob, answer: JobStates) -> JobStatus:
    view = _read_view(out / job.name)
    state = _state(job, view, answer)
    return JobStatus(
        job=job,
        state=state,
        reason=answer.reasons.get(job.job_id or "", "") if state == "pending" else "",
        view=view,
        fruitless=_fruitless(out, job),
    )


def _state(job: SlurmJob, view: View | None, answer: JobStates) -> str:
    """The run's own word counts where it is complete: a job may have failed afterwards, and SLURM forgets jobs."""
    if view is not None and view.state in DONE:
        return view.state
    known = answer.states.get(job.job_id or "")
    if known is not None:
        # A job may end well without a complete run if its script was edited.
        return "incomplete" if known == "completed" else known
    if job.job_id is None:
        return "not submitted"
    return view.state if view is not None else "unknown"


def _read_view(folder: Path) -> View | None:
    try:
        return view_of(folder)
    except ValueError:
        return None  # not begun, or nothing that a run has written


def _fruitless(out: Path, job: SlurmJob) -> int:
    try:
        words = (out / FOLDER / f"{job.name}.requeues").read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(words[1]) if len(words) == 2 and words[1].isdigit() else 0
