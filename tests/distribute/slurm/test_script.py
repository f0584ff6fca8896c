"""The batch script: what it asks for, and what it does, run by bash with stand-ins for SLURM's commands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hasten.distribute.slurm.jobs import Shape
from hasten.distribute.slurm.script import Request, batch_script, check_folder, check_request
from tests.distribute.slurm.fakes import calls, fake, only_fakes

TWO_NODES = Shape(nodes=2, tasks_per_node=4, gpus_per_node=4)


def script(folder: Path, request: Request, shape: Shape = TWO_NODES) -> str:
    return batch_script(
        name=shape.name, shape=shape, request=request, script=folder / f"{shape.name}.sbatch",
        run=folder / f"{shape.name}.yaml", out=folder.parent / shape.name, timeout_s=600.0,
    )  # fmt: skip


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_what_is_asked_of_the_cluster(tmp_path: Path) -> None:
    request = Request(
        cpus_per_task=6, time="4:00:00", partition="gpu", account="lab", qos="long", mem="120G",
        constraint="a100|h100", extra=("--reservation=night",), signal_s=90,
    )  # fmt: skip
    folder = tmp_path / "my out" / "slurm"

    text = script(folder, request)

    assert directives(text) == [
        "--job-name=hasten-gpus-8",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--gres=gpu:4",
        "--cpus-per-task=6",
        "--time=4:00:00",
        "--partition=gpu",
        "--account=lab",
        "--qos=long",
        "--mem=120G",
        '--constraint="a100|h100"',
        f'--output="{folder}/gpus-8-%j.log"',
        "--signal=USR1@90",
        "--requeue",
        "--open-mode=append",
        "--reservation=night",
    ]
    # srun takes it from sbatch in some versions of SLURM only.
    assert "--cpus-per-task=6" in text.partition("srun --label")[2].partition("\n")[0]


def test_without_gpus_none_are_asked_for(tmp_path: Path) -> None:
    asked = directives(script(tmp_path, Request(), Shape(nodes=1, tasks_per_node=2)))
    assert "--ntasks-per-node=2" in asked
    assert not [line for line in asked if "gres" in line]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(cpus_per_task=-1), "--cpus-per-task -1"),
        (Request(signal_s=0), "--signal-before 0"),
        (Request(signal_s=70000), "--signal-before 70000"),
        (Request(max_requeues=-1), "--max-requeues -1"),
        (Request(partition="a\n#SBATCH --uid=0"), "--partition .* on one line"),
        (Request(time=""), "--time ''"),
        (Request(extra=("reservation=x",)), "--sbatch-arg 'reservation=x'"),
        (Request(python=""), "--python ''"),
    ],
)
def test_options_that_no_script_can_hold(request_: Request, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_request(request_)


@pytest.mark.parametrize("name", ['a"b', "50%", "a\\b", "a\nb"])
def test_folders_that_slurm_reads_otherwise(name: str) -> None:
    with pytest.raises(ValueError, match="SLURM writes no log"):
        check_folder(Path("/runs") / name)


Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Runs the script as SLURM would, with a step that exits with `code`."""
    bin_, folder = tmp_path / "bin", tmp_path / "my out" / "slurm"
    only_fakes(bin_, monkeypatch)
    folder.mkdir(parents=True)

    def run(code: int = 0, *, preempted: bool = False, **asked: int) -> subprocess.CompletedProcess[str]:
        when = "2026-11-22T02:27:13" if preempted else "None"
        fake(bin_, "scontrol", f'case $1 in\n  show) [ $2 = hostnames ] && echo first && echo second;'
                               f'[ $2 = job ] && echo "PreemptTime={when}" ;;\nesac\ntrue')  # fmt: skip
        fake(bin_, "srun", f'echo "$MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS $LAB" > {bin_}/seen\nexit {code}')
        text = script(folder, Request(setup=("export LAB=3",), python="/env/bin/python", **asked))
        (folder / "gpus-8.sbatch").write_text(text)
        env = {"PATH": f"{bin_}:{bin_}/shell", "SLURM_JOB_ID": "40123", "SLURM_JOB_NODELIST": "n[1-2]",
               "SLURM_CPUS_PER_TASK": "6"}  # fmt: skip
        return subprocess.run(["bash", folder / "gpus-8.sbatch"], env=env, capture_output=True, text=True, timeout=30,
                              check=False)  # fmt: skip

    return run


def saved(tmp_path: Path, steps: int) -> None:
    run = tmp_path / "my out" / "gpus-8"
    run.mkdir(exist_ok=True)
    (run / "summary.json").write_text(
        json.dumps({"status": "interrupted", "steps": steps, "more": {"steps": 1}}, indent=2)
    )


def requeued(tmp_path: Path) -> int:
    return sum(call.startswith("requeue 40123") for call in calls(tmp_path / "bin", "scontrol"))


def test_a_run_that_ends_well(start: Start, tmp_path: Path) -> None:
    done = start()

    assert done.returncode == 0, done.stderr
    assert "== trained" in done.stdout
    # The first host, a port made of the job's number, the cores of a task, and what --setup exports.
    assert (tmp_path / "bin" / "seen").read_text().split() == ["first", "10123", "6", "3"]
    folder = tmp_path / "my out"
    (call,) = calls(tmp_path / "bin", "srun")
    assert call.endswith(f"/env/bin/python -m hasten train {folder}/slurm/gpus-8.yaml --out {folder}/gpus-8")
    # Else the first rank to end would take the one that still writes the checkpoint with it.
    assert "--kill-on-bad-exit=0 --wait=900" in call
    assert "--export=ALL" in call  # what --setup set reaches the ranks
    assert (folder / "slurm" / "gpus-8.jobid").read_text() == "40123\n"
    assert requeued(tmp_path) == 0


def test_a_run_that_has_begun_is_resumed(start: Start, tmp_path: Path) -> None:
    saved(tmp_path, 0)
    (tmp_path / "my out" / "gpus-8" / "run.yaml").touch()

    start()

    assert calls(tmp_path / "bin", "srun")[0].endswith("gpus-8 --resume")


@pytest.mark.parametrize(("code", "preempted", "again"), [
    (75, False, True),    # saved after SIGUSR1
    (138, False, True),   # ended by SIGUSR1, which nobody heard yet
    (143, True, True),    # SIGTERM of a preemption
    (143, False, False),  # SIGTERM of somebody
    (1, False, False),
    (2, True, False),
])  # fmt: skip
def test_what_is_queued_again(start: Start, tmp_path: Path, code: int, preempted: bool, again: bool) -> None:
    done = start(code, preempted=preempted)

    assert requeued(tmp_path) == int(again), done.stdout
    assert done.returncode == (75 if again else code)


def test_a_job_is_queued_again_for_as_long_as_it_gets_on(start: Start, tmp_path: Path) -> None:
    for steps in (10, 20, 20, 20, 30):  # two starts without a new step are allowed
        saved(tmp_path, steps)
        assert start(75, max_requeues=2).returncode == 75
    assert requeued(tmp_path) == 5

    codes = [start(75, max_requeues=2).returncode for _ in range(3)]

    assert codes == [75, 75, 1]
    assert requeued(tmp_path) == 7
