"""A job's batch script: what it asks for, how it is handed in, and what bash makes of it, with stand-ins for SLURM."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hasten.cli.main import app
from hasten.config.load import load_run
from hasten.distribute.slurm import SlurmJob, batch_script
from hasten.phantoms.organs import write_phantoms


def fake(folder: Path, name: str, body: str) -> None:
    """A command `name` in `folder` that runs the shell lines `body`; its arguments go to NAME.calls, a line a call."""
    path = folder / name
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >> {folder}/{name}.calls\n{body}\n')
    path.chmod(0o755)


def calls(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, on a PATH with the shell's own commands and no SLURM that may be installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sed", "head", "grep", "date", "cat", "echo"):
        place = next(place for place in (Path("/bin", name), Path("/usr/bin", name)) if place.exists())
        (folder / name).symlink_to(place)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    source = write_phantoms(tmp_path / "set", num_cases=2, shape=(16, 24, 24))
    path.write_text(f"data: {{source: {source}}}\nsample: {{batch_size: 8}}\n")
    return path


def submit(*arguments: object) -> Result:
    """The outcome; a user's mistake is one line of the output."""
    return CliRunner().invoke(app, ["slurm", "submit", *(str(argument) for argument in arguments)])


def test_a_job_is_handed_in_once(bin_: Path, run_yaml: Path, tmp_path: Path) -> None:
    out = tmp_path / "my out"
    given = (run_yaml, "--out", out, "--nodes", 2, "--gpus-per-node", 4, "--time", "4:00:00", "--partition", "gpu",
             "--cpus-per-task", 6, "--sbatch-arg=--reservation=r", "--signal-before", 90, "train.steps=10")  # fmt: skip
    refused = submit(*given)
    assert "sbatch is not on PATH" in refused.output
    fake(bin_, "sbatch", 'echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1')
    refused = submit(*given)
    assert "invalid partition" in refused.output
    fake(bin_, "sbatch", 'echo "101;main"')

    done = submit(*given)

    assert done.exit_code == 0, done.exception
    assert "scancel 101" in done.output
    script = out / "logs/job.sbatch"
    assert calls(bin_, "sbatch")[-1] == f"--parsable {script}"
    asked = [line.removeprefix("#SBATCH ") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        '--job-name="hasten-my out"',
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gres=gpu:4",
        "--cpus-per-task=6",
        f'--output="{out}/logs/job-%j.log"',
        "--signal=USR1@90",
        "--requeue",
        "--open-mode=append",
        "--time=4:00:00",
        "--partition=gpu",
        "--reservation=r",
    ]
    # srun takes it from sbatch in some versions of SLURM only.
    assert "--cpus-per-task=6" in script.read_text().partition("srun --label")[2].partition("\n")[0]
    # Settings are those of now, whatever happens to the user's file while the job waits.
    assert load_run(out / "logs/job.yaml").train.steps == 10
    assert "has a job" in submit(*given).output
    assert len(calls(bin_, "sbatch")) == 1 + 1


def test_a_dry_run_writes_what_can_be_handed_in(bin_: Path, run_yaml: Path, tmp_path: Path) -> None:
    script = tmp_path / "out/logs/job.sbatch"
    assert f"sbatch {script}" in submit(run_yaml, "--out", tmp_path / "out", "--tasks-per-node", 2, "--dry-run").output
    text = script.read_text()
    assert "#SBATCH --ntasks-per-node=2\n" in text
    assert "gres" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--gpus-per-node, --tasks-per-node: give one"),
        (("--gpus-per-node", "4", "--tasks-per-node", "4"), "--gpus-per-node, --tasks-per-node: give one"),
        (("--gpus-per-node", "-1"), "'--gpus-per-node': "),
        (("--gpus-per-node", "4", "--nodes", "0"), "'--nodes': "),
        (("--gpus-per-node", "4", "--signal-before", "70000"), "'--signal-before': "),
        (("--gpus-per-node", "4", "--max-requeues", "-1"), "'--max-requeues': "),
        (("--gpus-per-node", "4", "train.stepz=3"), "did you mean train.steps"),
        (("--gpus-per-node", "3"), "can't be dealt among 3"),
        (("--gpus-per-node", "4", "--time", "nonsense"), "--time 'nonsense': no time limit of SLURM's"),
        (("--gpus-per-node", "4", "--partition", "a\n#SBATCH --uid=0"), "must be an option of sbatch"),
        (("--gpus-per-node", "4", "--sbatch-arg", "x"), "--sbatch-arg 'x'"),
        (("--gpus-per-node", "4", "data.source=."), "no known layout"),
        (("--gpus-per-node", "4", "--out", "50%"), "SLURM writes no log"),
        (("--gpus-per-node", "4", "--out", "set"), "set: is not an empty folder"),
    ],
)
def test_nothing_is_submitted_of_what_is_wrong(
    bin_: Path,
    run_yaml: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    fake(bin_, "sbatch", "echo 1")
    before = sorted(tmp_path.rglob("*"))
    done = submit(run_yaml, "--out", "out", *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert sorted(tmp_path.rglob("*")) == before


Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(bin_: Path, tmp_path: Path) -> Start:
    """Runs the script as SLURM would, with a step that exits with `code`."""
    out = tmp_path / "my out"
    (out / "logs").mkdir(parents=True)

    def run(code: int = 0, *, preempted: bool = False, max_requeues: int = 3) -> subprocess.CompletedProcess[str]:
        when = "2026-11-22T02:27:13" if preempted else "None"
        show = f'[ $2 = hostnames ] && echo first && echo second; [ $2 = job ] && echo "PreemptTime={when}"'
        fake(bin_, "scontrol", f"case $1 in show) {show} ;; esac\ntrue")
        fake(bin_, "srun", f'echo "$MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS $LAB" > {bin_}/seen\nexit {code}')
        job = SlurmJob(
            nodes=2,
            gpus_per_node=4,
            setup=("export LAB=3",),
            python="/env/bin/python",
            max_requeues=max_requeues,
        )
        script = out / "logs/job.sbatch"
        script.write_text(batch_script(job, out, 600.0))
        env = {
            "PATH": str(bin_),
            "SLURM_JOB_ID": "40123",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_CPUS_PER_TASK": "6",
        }
        return subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=30, check=False)

    return run


def saved(tmp_path: Path, steps: int) -> None:
    content = {"status": "interrupted", "steps": steps, "more": {"steps": 1}}
    (tmp_path / "my out/summary.json").write_text(json.dumps(content, indent=2))


def requeued(bin_: Path) -> int:
    return sum(call.startswith("requeue 40123") for call in calls(bin_, "scontrol"))


def test_a_run_that_ends_well_and_one_that_has_begun(start: Start, bin_: Path, tmp_path: Path) -> None:
    done = start()

    assert done.returncode == 0, done.stderr
    # The first host, a port made of the job's number, the cores of a task, and what --setup exports.
    assert (bin_ / "seen").read_text().split() == ["first", "10123", "6", "3"]
    out = tmp_path / "my out"
    (call,) = calls(bin_, "srun")
    assert call.endswith(f"/env/bin/python -m hasten train {out}/logs/job.yaml --out {out}")
    # Else the first rank to end would take the one that still writes the checkpoint with it.
    assert "--kill-on-bad-exit=0 --wait=900" in call
    assert "--export=ALL" in call  # what --setup set reaches the ranks
    assert requeued(bin_) == 0

    (out / "run.yaml").touch()
    start()
    assert calls(bin_, "srun")[1].endswith("my out --resume")


@pytest.mark.parametrize(
    ("code", "preempted", "again"),
    [
        (75, False, True),  # saved after SIGUSR1
        (138, False, True),  # ended by SIGUSR1, which nobody heard yet
        (143, True, True),  # SIGTERM of a preemption
        (143, False, False),  # SIGTERM of somebody
        (1, False, False),
        (2, True, False),
    ],
)
def test_what_is_queued_again(start: Start, bin_: Path, code: int, preempted: bool, again: bool) -> None:
    done = start(code, preempted=preempted)
    assert requeued(bin_) == int(again), done.stdout
    assert done.returncode == (75 if again else code)


def test_a_job_is_queued_again_for_as_long_as_it_gets_on(start: Start, bin_: Path, tmp_path: Path) -> None:
    for steps in (10, 20, 20, 20, 30):  # two starts without a new step are allowed
        saved(tmp_path, steps)
        assert start(75, max_requeues=2).returncode == 75
    assert requeued(bin_) == 5
    assert [start(75, max_requeues=2).returncode for _ in range(3)] == [75, 75, 1]
    assert requeued(bin_) == 7
