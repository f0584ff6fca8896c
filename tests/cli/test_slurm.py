"""`hasten slurm`, with stand-ins for SLURM's commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hasten.cli.slurm import app
from hasten.distribute.slurm.jobs import script_path
from hasten.phantoms.organs import write_phantoms
from tests.distribute.slurm.fakes import calls, fake, only_fakes


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_fakes(tmp_path / "bin", monkeypatch)
    fake(tmp_path / "bin", "sbatch", f"grep -c . {tmp_path}/bin/sbatch.calls")
    return tmp_path / "bin"


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    source = write_phantoms(tmp_path / "set", num_cases=2, shape=(16, 24, 24))
    path.write_text(f"data: {{source: {source}}}\nsample: {{batch_size: 8}}\n")
    return path


def hasten(*arguments: object) -> Result:
    """The outcome; a user's mistake is an exception, which the command line's guard turns into one line."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_sweep_from_its_submission_to_its_results(bin_: Path, run_yaml: Path, tmp_path: Path) -> None:
    out = tmp_path / "my out"

    done = hasten("submit", run_yaml, "--out", out, "--gpus-per-node", 4, "--sweep", "gpus=1,8", "--partition", "gpu",
                  "--sbatch-arg=--reservation=r", "--module", "module load cuda", "train.steps=10")  # fmt: skip

    assert done.exit_code == 0, done.exception
    assert "gpus-8     job 2          2 nodes x 4 GPUs" in done.output
    assert f"hasten slurm status '{out}'" in done.output
    assert "scancel 1 2" in done.output
    text = script_path(out, "gpus-8").read_text()
    assert "#SBATCH --partition=gpu\n" in text
    assert "#SBATCH --reservation=r\n" in text
    assert "\nmodule load cuda\n" in text
    assert "steps: 10\n" in (out / "slurm" / "gpus-8.yaml").read_text()

    fake(bin_, "squeue", 'echo "1|PENDING|Resources"; echo "2|FAILED|NonZeroExitCode"')
    looked = hasten("status", out)

    assert looked.exit_code == 0, looked.exception
    assert [line.split()[:4] for line in looked.output.splitlines()[1:]] == [
        ["gpus-1", "1", "1", "pending"],
        ["gpus-8", "2", "8", "failed"],
    ]
    assert "pending (Resources)" in looked.output

    gathered = hasten("collect", out)

    assert gathered.exit_code == 0, gathered.exception
    assert "still going: gpus-1;" in gathered.output
    assert "without a result: gpus-8;" in gathered.output
    runs = json.loads((out / "scale.json").read_text())["runs"]
    assert [(entry["folder"], entry["world"], entry["status"]) for entry in runs] == [
        ("gpus-1", 1, "pending"),
        ("gpus-8", 8, "failed"),
    ]


def test_a_dry_run_says_what_to_do_next(bin_: Path, run_yaml: Path, tmp_path: Path) -> None:
    done = hasten("submit", run_yaml, "--out", tmp_path / "out", "--tasks-per-node", 2, "--nodes", 2, "--dry-run")

    assert "tasks-4    not submitted  2 nodes x 2 processes" in done.output
    assert "without --dry-run" in done.output
    assert not calls(bin_, "sbatch")
    assert "sbatch " in hasten("status", tmp_path / "out").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--gpus-per-node 0: .*--tasks-per-node"),
        (("--gpus-per-node", "4", "--sweep", "gpus=1,6"), "6 does not divide into nodes of 4"),
        (("--gpus-per-node", "4", "--sweep", "1,2"), "must read gpus=1,2,4"),
        (("--gpus-per-node", "4", "train.stepz=3"), "did you mean train.steps"),
        (("--gpus-per-node", "3"), "can't be dealt among 3"),
        (("--gpus-per-node", "4", "--time", ""), "--time ''"),
        (("--gpus-per-node", "4", "--time", "nonsense"), "--time 'nonsense': no time limit of SLURM's"),
        (("--gpus-per-node", "4", "data.source=."), "no known layout"),
        (("--gpus-per-node", "4", "--sbatch-arg", "x"), "--sbatch-arg 'x'"),
    ],
)
def test_nothing_is_submitted_of_what_is_wrong(
    bin_: Path, run_yaml: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = hasten("submit", run_yaml, "--out", tmp_path / "out", *arguments)

    assert isinstance(done.exception, ValueError)
    with pytest.raises(ValueError, match=said):
        raise done.exception
    assert not calls(bin_, "sbatch")
    assert not (tmp_path / "out").exists()
