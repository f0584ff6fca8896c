"""How jobs stand: by what SLURM tells where it does, and by the runs' own files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hasten.distribute.slurm.jobs import SlurmJob
from hasten.distribute.slurm.queue import query
from hasten.distribute.slurm.status import JobStatus, is_active, job_statuses, scale_json
from hasten.scaling.logs import RUNS_JSON, study_entries
from tests.distribute.slurm.fakes import calls, fake, only_fakes

JOB = SlurmJob(
    name="gpus-4", world=4, nodes=1, tasks_per_node=4, gpus_per_node=4, strategy="ddp", seed=0, mode="strong",
    job_id="12",
)  # fmt: skip


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_fakes(tmp_path / "bin", monkeypatch)
    return tmp_path / "bin"


def ran(out: Path, status: str | None, *, steps: int = 20, name: str = JOB.name) -> None:
    """The files of a run, as it leaves them or as they are while it goes."""
    folder = out / name
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text("train: {steps: 40}\n")
    train = {"kind": "train", "step": steps, "time_s": 9.5, "loss": 0.4, "samples_per_s": 33.0}
    lines = [train, {"kind": "validation", "step": steps, "time_s": 9.9, "dice": 0.81}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if status is not None:
        (folder / "summary.json").write_text(json.dumps({"status": status, "steps": steps}))


def standing_of(out: Path, job: SlurmJob = JOB) -> JobStatus:
    return job_statuses(out, [job])[0][0]


def test_a_job_in_the_queue(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "12|PENDING|Priority"; echo "13|RUNNING|None"')

    waiting, going = job_statuses(tmp_path, [JOB, dataclasses.replace(JOB, name="gpus-8", job_id="13")])[0]

    assert (waiting.state, waiting.reason, waiting.view) == ("pending", "Priority", None)
    assert (going.state, going.reason) == ("running", "")
    assert "--jobs=12,13" in calls(bin_, "squeue")[0]
    assert is_active("pending")
    assert not is_active("failed")


def test_a_run_in_its_midst(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "12|RUNNING|None"')
    ran(tmp_path, None)

    standing = standing_of(tmp_path)

    assert standing.view is not None
    assert (standing.state, standing.view.steps, standing.view.total) == ("running", 20, 40)
    assert (standing.view.best, standing.view.samples_per_s, standing.is_done) == (0.81, 33.0, False)


def test_a_job_that_goes_on_after_a_stop_is_no_finished_one(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "12|REQUEUED|BeginTime"')
    ran(tmp_path, "interrupted")

    assert standing_of(tmp_path).state == "requeued"


def test_a_run_that_is_through_needs_no_slurm(bin_: Path, tmp_path: Path) -> None:
    ran(tmp_path, "finished", steps=40)

    standing = standing_of(tmp_path)

    assert (standing.state, standing.is_done) == ("finished", True)
    assert query(["12"]).notes == ("squeue is not on PATH, so that only what the runs wrote themselves is known.",)


def test_jobs_that_left_the_queue_are_asked_of_the_accounting(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    fake(bin_, "sacct", 'echo "12|CANCELLED by 1000"; echo "12.batch|CANCELLED"')

    standing, message = job_statuses(tmp_path, [JOB])

    assert standing[0].state == "cancelled"
    assert message.notes == ()


def test_a_cluster_without_accounting(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    fake(bin_, "sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    ran(tmp_path, "interrupted")

    standing, message = job_statuses(tmp_path, [JOB])

    assert standing[0].state == "interrupted"
    assert message.notes == (
        "sacct: Slurm accounting storage is disabled; jobs that have left the queue are judged by their files.",
    )
    assert standing_of(tmp_path / "elsewhere").state == "unknown"


def test_a_controller_that_is_away(bin_: Path, tmp_path: Path) -> None:
    fake(
        bin_, "squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
    )

    standing, message = job_statuses(tmp_path, [JOB])

    assert "Unable to contact slurm controller" in message.notes[0]
    assert standing[0].state == "unknown"


def test_a_job_that_ended_well_without_a_complete_run(bin_: Path, tmp_path: Path) -> None:
    fake(bin_, "squeue", 'echo "12|COMPLETED|None"')

    assert standing_of(tmp_path).state == "incomplete"
    assert standing_of(tmp_path, dataclasses.replace(JOB, job_id=None)).state == "not submitted"


def test_fruitless_starts_are_told(bin_: Path, tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "gpus-4.requeues").write_text("20 2\n")

    assert standing_of(tmp_path).fruitless == 2


def test_what_is_collected_is_what_the_study_reads(bin_: Path, tmp_path: Path) -> None:
    ran(tmp_path, "finished")
    content = scale_json(
        job_statuses(tmp_path, [JOB, dataclasses.replace(JOB, name="gpus-8", world=8, job_id=None)])[0]
    )
    (tmp_path / RUNS_JSON).write_text(json.dumps(content))

    first, second = study_entries(tmp_path)

    assert (first.world, first.strategy, first.seed, first.mode) == (4, "ddp", 0, "strong")
    assert (first.folder, first.status) == ("gpus-4", "finished")
    assert (second.world, second.status) == (8, "not submitted")


def test_squeue_that_cannot_be_started(bin_: Path) -> None:
    path = fake(bin_, "squeue", "true")
    path.write_text("#!/no/such/shell\n")

    assert "can't be started" in query(["12"]).notes[0]
