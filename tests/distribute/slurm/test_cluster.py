"""Against a real SLURM: what is submitted trains, is stopped, queued again, and ends as if nothing had happened."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.config.schema import RunConfig
from hasten.distribute.slurm.jobs import read_jobs, shape_of, sweep_of
from hasten.distribute.slurm.script import Request
from hasten.distribute.slurm.status import job_statuses, scale_json
from hasten.distribute.slurm.submit import submit
from hasten.observe.rundir import write_json
from hasten.phantoms.organs import write_phantoms
from hasten.scaling.logs import RUNS_JSON, read_logs
from tests.distribute.slurm.cluster import Slurm, missing, slurm_cluster
from tests.training.runs import assert_same_run, config_of, metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(1500),
]

SETUP = ("export GLOO_SOCKET_IFNAME=lo",)
STEP, STEPS = 5, 24
"""A run is held in that step until it is stopped, and stops up to 15 steps later: the ranks agree on which."""
TWO = shape_of(nodes=2, gpus_per_node=0, tasks_per_node=1)
"""Processes, one on each node."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster() as running, pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, running.env[name])
        yield running


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("data set")
    source = write_phantoms(folder / "data", num_cases=6, shape=(16, 20, 20), spacing=(1.0, 1.0, 1.0))
    return config_of(source, folder / "cache", "sample.batch_size=4", f"train.steps={STEPS}", "observe.monitor_every=0")


@pytest.fixture(scope="module")
def swept(slurm: Slurm, config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over one and two processes that nothing disturbed."""
    out = tmp_path_factory.mktemp("swept") / "out"
    jobs = list(submit(config, out, sweep_of("tasks=1,2", TWO), Request(setup=SETUP)))
    for job in jobs:
        assert job.job_id is not None
        assert slurm.wait_for_end(job.job_id) == "completed", log(out, job.name)
    return out


def log(out: Path, name: str) -> str:
    return "\n".join(path.read_text() for path in sorted((out / "slurm").glob(f"{name}-*.log")))


def test_a_sweep_is_trained_and_collected(swept: Path) -> None:
    standing, message = job_statuses(swept, read_jobs(swept))

    assert [each.state for each in standing] == ["finished", "finished"], log(swept, "tasks-2")
    assert [each.view.steps for each in standing if each.view] == [STEPS, STEPS]
    assert not [note for note in message.notes if "squeue" in note]
    write_json(swept / RUNS_JSON, scale_json(standing))
    study = read_logs(swept)
    assert [(each.strategy, each.world, each.mode) for each in study.logs] == [
        ("ddp", 2, "strong"),
        ("single", 1, "strong"),
    ]
    # Two processes share the batch that one has.
    losses = [[line["loss"] for line in metrics(swept / name, "train")] for name in ("tasks-1", "tasks-2")]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)
    assert json.loads((swept / "slurm" / "jobs.json").read_text())["jobs"][0]["job_id"].isdigit()


def held(config: RunConfig, out: Path, tmp_path: Path, slurm: Slurm) -> str:
    """A job of two processes, once it is held in the midst of its training."""
    reached, start = tmp_path / "reached", tmp_path / "python"
    gate = shlex.join([sys.executable, str(Path(__file__).with_name("gated.py")), str(reached), str(STEP)])
    start.write_text(f'#!/bin/sh\nexec {gate} "$@"\n')
    start.chmod(0o755)
    (job,) = submit(config, out, [TWO], Request(setup=SETUP, python=str(start)))
    assert job.job_id is not None
    slurm.wait(lambda: reached.exists() or slurm.state(job.job_id or "") == "failed")
    assert reached.exists(), log(out, job.name)
    return job.job_id


@pytest.mark.parametrize("how", ["SIGUSR1", "a more urgent job", "scontrol requeue"])
def test_a_stopped_job_is_queued_again_and_ends_as_if_undisturbed(
    slurm: Slurm, config: RunConfig, swept: Path, tmp_path: Path, how: str
) -> None:
    out = tmp_path / "out"
    job = held(config, out, tmp_path, slurm)
    match how:
        case "SIGUSR1":  # what SLURM sends before the time limit
            slurm.run("scancel", "--signal=USR1", job)
            said = "== stopped by SIGUSR1"
        case "a more urgent job":
            other = slurm.run(
                "sbatch", "--parsable", "--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=true"
            )
            assert slurm.wait_for_end(other) == "completed"
            said = "== preempted"
        case _:
            slurm.run("scontrol", "requeue", job)
            said = "DUE TO JOB REQUEUE"

    assert slurm.wait_for_end(job) == "completed", log(out, "tasks-2")

    output = log(out, "tasks-2")
    assert said in output
    assert "stopped at step 1" in output
    assert ", start 2," in output
    assert "== trained" in output
    assert_same_run(out / "tasks-2", swept / "tasks-2")


def test_a_partition_that_is_not_there(slurm: Slurm, config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"tasks-2\.sbatch: sbatch refused it: .*invalid partition"):
        list(submit(config, out, [TWO], Request(partition="nowhere")))

    (job,) = submit(config, out, [TWO], Request(partition="low", setup=("exit 3",)))

    assert job.job_id is not None
    assert slurm.wait_for_end(job.job_id) == "failed"
    (standing,), _ = job_statuses(out, read_jobs(out))
    assert standing.state == "failed"


def test_a_job_that_saves_nothing_is_not_queued_for_ever(slurm: Slurm, config: RunConfig, tmp_path: Path) -> None:
    start = tmp_path / "python"
    start.write_text("#!/bin/sh\nexit 75\n")
    start.chmod(0o755)
    out = tmp_path / "out"
    (job,) = submit(config, out, [TWO], Request(python=str(start), max_requeues=1))
    assert job.job_id is not None

    assert slurm.wait_for_end(job.job_id) == "failed"

    output = log(out, "tasks-2")
    assert output.count("steps are saved; queued again") == 1
    assert "not queued again: 2 starts in a row have saved no new step" in output


def test_the_time_limit_is_told_to_every_rank(slurm: Slurm, config: RunConfig, tmp_path: Path) -> None:
    """By SLURM itself, which looks at limits twice a minute. The ranks are stand-ins, as the limit is one minute."""
    start = tmp_path / "python"
    start.write_text(
        '#!/bin/bash\n[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 0\n'
        f"trap 'touch {tmp_path}/heard-$SLURM_PROCID; exit 75' USR1\nwhile true; do sleep 0.2; done\n"
    )
    start.chmod(0o755)
    out = tmp_path / "out"
    (job,) = submit(config, out, [TWO], Request(python=str(start), time="1", signal_s=50))
    assert job.job_id is not None

    assert slurm.wait_for_end(job.job_id) == "completed", log(out, job.name)

    assert sorted(path.name for path in tmp_path.glob("heard-*")) == ["heard-0", "heard-1"]
    assert "== stopped by SIGUSR1; 0 steps are saved; queued again" in log(out, "tasks-2")
