"""Against a real SLURM: what is submitted trains, is stopped, queued again, and ends as if nothing had happened."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.config.schema import RunConfig
from hasten.distribute.slurm import SlurmJob, submit
from hasten.phantoms.organs import write_phantoms
from tests.distribute.slurm.cluster import Slurm, missing, slurm_cluster
from tests.training.runs import assert_same_run, config_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(1500),
]

STEP, STEPS = 5, 24
"""A run is held in that step until it is stopped, and stops up to 15 steps later: the ranks agree on which."""
TWO = SlurmJob(nodes=2, tasks_per_node=1, setup=("export GLOO_SOCKET_IFNAME=lo",))


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
def undisturbed(slurm: Slurm, config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, one on each node, that nothing disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    _, job = submit(config, out, TWO)
    assert job is not None
    assert slurm.wait_for_end(job) == "completed", log(out)
    return out


def log(out: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((out / "logs").glob("job-*.log")))


def held(config: RunConfig, out: Path, tmp_path: Path, slurm: Slurm) -> str:
    """A job of two processes, once it is held in the midst of its training."""
    reached, start = tmp_path / "reached", tmp_path / "python"
    gate = shlex.join([sys.executable, str(Path(__file__).with_name("gated.py")), str(reached), str(STEP)])
    start.write_text(f'#!/bin/sh\nexec {gate} "$@"\n')
    start.chmod(0o755)
    _, job = submit(config, out, replace(TWO, python=str(start)))
    assert job is not None
    slurm.wait(lambda: reached.exists() or slurm.state(job) == "failed")
    assert reached.exists(), log(out)
    return job


@pytest.mark.parametrize("how", ["SIGUSR1", "a more urgent job", "scontrol requeue"])
def test_a_stopped_job_is_queued_again_and_ends_as_if_undisturbed(
    slurm: Slurm, config: RunConfig, undisturbed: Path, tmp_path: Path, how: str
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

    assert slurm.wait_for_end(job) == "completed", log(out)

    output = log(out)
    assert said in output
    assert "stopped at step 1" in output
    assert ", start 2," in output
    assert "== trained" in output
    assert_same_run(out, undisturbed)


def test_a_partition_that_is_not_there(slurm: Slurm, config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sbatch refused the job: .*invalid partition"):
        submit(config, tmp_path / "out", replace(TWO, options=("--partition=nowhere",)))


def test_a_job_that_saves_nothing_is_not_queued_for_ever(slurm: Slurm, config: RunConfig, tmp_path: Path) -> None:
    start = tmp_path / "python"
    start.write_text("#!/bin/sh\nexit 75\n")
    start.chmod(0o755)
    out = tmp_path / "out"
    _, job = submit(config, out, replace(TWO, python=str(start), max_requeues=1))
    assert job is not None

    assert slurm.wait_for_end(job) == "failed"

    output = log(out)
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
    _, job = submit(config, out, replace(TWO, python=str(start), options=("--time=1",), signal_s=50))
    assert job is not None

    assert slurm.wait_for_end(job) == "completed", log(out)

    assert sorted(path.name for path in tmp_path.glob("heard-*")) == ["heard-0", "heard-1"]
    assert "== stopped by SIGUSR1; 0 steps are saved; queued again" in log(out)
