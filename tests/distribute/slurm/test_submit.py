"""Writing batch scripts and handing them in, with a stand-in for sbatch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.distribute.slurm.jobs import Shape, SlurmJob, read_jobs, script_path, settings_path, shape_of, sweep_of
from hasten.distribute.slurm.script import Request
from hasten.distribute.slurm.submit import settings_at, submit
from tests.distribute.slurm.fakes import calls, fake, only_fakes

NODE = shape_of(nodes=None, gpus_per_node=4, tasks_per_node=None)
COUNTING = 'n=$(cat {0}/sbatch.calls | grep -c .); echo "$((100 + n));main"'


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an sbatch that numbers its jobs from 101."""
    folder = tmp_path / "bin"
    only_fakes(folder, monkeypatch)
    fake(folder, "sbatch", COUNTING.format(folder))
    return folder


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_run(None, (f"data.source={tmp_path}", "sample.batch_size=8", "train.seed=5"))


def submitted(config: RunConfig, out: Path, shapes: Sequence[Shape] = (NODE,), request: Request | None = None,
              **options: bool) -> list[SlurmJob]:  # fmt: skip
    return list(submit(config, out, shapes, request or Request(), **options))


def test_each_job_is_handed_in_and_remembered(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"

    jobs = submitted(config, out, sweep_of("gpus=1,8", NODE))

    assert calls(sbatch, "sbatch") == [f"--parsable {out}/slurm/gpus-{count}.sbatch" for count in (1, 8)]
    assert [(job.name, job.job_id, job.nodes, job.strategy, job.seed) for job in jobs] == [
        ("gpus-1", "101", 1, "single", 5),
        ("gpus-8", "102", 2, "ddp", 5),
    ]
    assert read_jobs(out) == jobs
    # Settings are those of now, whatever happens to the user's file while the job waits.
    assert load_run(settings_path(out, "gpus-8")) == config


def test_a_dry_run_only_writes_and_the_real_one_may_follow(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    only_fakes(tmp_path / "bin", monkeypatch)

    (job,) = submitted(config, out, dry_run=True)

    assert job.job_id is None
    assert script_path(out, "gpus-4").is_file()
    with pytest.raises(ValueError, match=r"sbatch is not on PATH.*--dry-run"):
        submitted(config, out)
    fake(tmp_path / "bin", "sbatch", "echo 7")
    assert [job.job_id for job in submitted(config, out)] == ["7"]


def test_without_sbatch_nothing_is_written(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_fakes(tmp_path / "bin", monkeypatch)
    with pytest.raises(ValueError, match="sbatch is not on PATH"):
        submitted(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_script_that_was_edited_is_not_written_over(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submitted(config, out, dry_run=True)
    script = script_path(out, "gpus-4")
    script.write_text(script.read_text() + "# mine\n")

    with pytest.raises(ValueError, match=r"gpus-4\.sbatch: was edited .*`sbatch "):
        submitted(config, out)
    assert script.read_text().endswith("# mine\n")


def test_a_folder_with_a_submission_is_left_alone(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submitted(config, out)

    with pytest.raises(ValueError, match=r"submission \(gpus-4 as 101\); .*`hasten slurm status "):
        submitted(config, out)
    assert len(calls(sbatch, "sbatch")) == 1


def test_a_script_that_was_handed_in_by_hand_counts(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submitted(config, out, dry_run=True)
    (out / "slurm" / "gpus-4.jobid").write_text("55\n")

    assert read_jobs(out)[0].job_id == "55"
    with pytest.raises(ValueError, match="holds a submission"):
        submitted(config, out)


def test_a_folder_in_which_a_run_would_train_must_be_free(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "out" / "gpus-4").mkdir(parents=True)
    with pytest.raises(ValueError, match="gpus-4: exists"):
        submitted(config, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: is a file"):
        submitted(config, tmp_path / "file")


def test_what_sbatch_refuses(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake(sbatch, "sbatch", 'echo "sbatch: error: invalid partition specified: nowhere" >&2; exit 1')
    with pytest.raises(ValueError, match=r"gpus-4\.sbatch: .*refused .*partition.*nowhere; correct"):
        submitted(config, out, request=Request(partition="nowhere"))

    fake(sbatch, "sbatch", "echo 9")
    assert [job.job_id for job in submitted(config, out)] == ["9"]  # once mended it works


def test_a_refusal_in_the_midst_of_a_sweep(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake(sbatch, "sbatch", 'case "$*" in *gpus-2*) echo "too many jobs" >&2; exit 1;; esac; echo 31')

    with pytest.raises(ValueError, match=r"too many jobs; .*gpus-1 as 31\. .*gpus-2\.sbatch .*gpus-4"):
        submitted(config, out, sweep_of("gpus=1,2,4", NODE))
    assert [job.job_id for job in read_jobs(out)] == ["31", None, None]


def test_a_batch_that_does_not_divide(sbatch: Path, config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample\.batch_size: 8 can't be dealt among 16"):
        submitted(config, tmp_path / "out", sweep_of("gpus=1,16", NODE))
    assert not (tmp_path / "out").exists()


def test_weak_scaling_grows_the_batch_and_with_it_the_rate(config: RunConfig, tmp_path: Path) -> None:
    grown = settings_at(config, 4, "weak")

    assert (grown.sample.batch_size, grown.train.learning_rate_batch) == (32, 8)
    assert settings_at(config, 4, "strong") == config
    with pytest.raises(ValueError, match=r"sample\.batch_size is open"):
        settings_at(load_run(None, (f"data.source={tmp_path}",)), 4, "weak")


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": [{"name": 3}]}', '{"jobs": 3}', json.dumps({"jobs": [{}]})])
def test_a_damaged_list_of_jobs(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="holds no submission"):
        read_jobs(tmp_path)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text(text)
    with pytest.raises(ValueError, match=r"jobs\.json: can't be read"):
        read_jobs(tmp_path)
