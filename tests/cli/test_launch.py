"""`hasten launch`: what it refuses before it starts anything, and a job that outlives twenty faults."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.launch import launch
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import SETTINGS, assert_same_run

STEPS = 120


def run(*arguments: str) -> str:
    """What `hasten launch` says of a mistake."""
    app = typer.Typer(rich_markup_mode=None)
    app.command()(launch)
    done = CliRunner(env={"TERM": "dumb"}).invoke(app, list(arguments))
    assert isinstance(done.exception, ValueError | SystemExit)
    assert done.exit_code
    return f"{done.exception} {done.stderr}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch") / "data"
    write_phantoms(folder, num_cases=6, shape=(20, 24, 24))
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nproc", "0"), "'--nproc': "),
        (("--nproc", "1", "--max-restarts", "-1"), "'--max-restarts': "),
        (("--nproc", "1", "--nnodes", "2"), "give all of them --master HOST:PORT"),
        (("--nproc", "1", "--nnodes", "2", "--node-rank", "2", "--master", "a:1"), "must be below --nnodes 2"),
        (("--nproc", "1", "train.steps=-1"), "train.steps: "),
        (("--nproc", "2", "train.stepps=4"), "train.stepps"),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(
    data: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    settings = [option for option in options if "=" in option]
    others = [option for option in options if "=" not in option]
    assert message in run(*others, "--out", str(tmp_path / "out"), str(data), *settings)
    assert not (tmp_path / "out").exists()


def test_a_fold_is_passed_on_and_the_same_command_resumes_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], str, str]] = []

    def start(_: object, command: list[str], *, again: str, resume: str) -> int:
        calls.append((command, again, resume))
        return 0

    monkeypatch.setattr("hasten.distribute.launch.agent.launch", start)
    app = typer.Typer()
    app.command()(launch)
    out = str(tmp_path / "cv")
    CliRunner().invoke(app, ["--nproc", "2", "--folds", "3", "--out", out, str(data)], catch_exceptions=False)
    [(command, again, resume)] = calls
    assert command[2:] == [str(data), "--out", out, "--folds", "3"]
    assert again == resume == f"hasten launch {data} --nproc 2 --out {out} --folds 3"
    assert "leave out --resume" in run("--nproc", "2", "--folds", "3", "--resume", "--out", out)


def started(data: Path, out: Path, *options: str, faults: str = "") -> subprocess.CompletedProcess[str]:
    settings = [*SETTINGS, f"cache.dir={data.parent / 'cache'}", "sample.batch_size=4", f"train.steps={STEPS}"]
    settings += ["train.checkpoint_every=5", "train.validate_every=40", "observe.trackers=[]"]
    command = ["launch", "--nproc", "2", "--quiet", *options, "--out", str(out), str(data), *settings]
    site = data.parent / "site"
    site.mkdir(exist_ok=True)
    # Python imports it at the start of each process.
    (site / "sitecustomize.py").write_text("from tests.distribute.launch.faults import install\ninstall()\n")
    path = os.pathsep.join([str(site), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HASTEN_FAULT": faults, "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-m", "hasten", *command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_faults_in_a_row(data: Path, tmp_path: Path) -> None:
    """Whatever befalls whichever rank after whichever step, the network is that of an undisturbed run."""
    draw = random.Random(7)
    steps = sorted(draw.sample(range(1, STEPS - 4), 20))
    faults = [f"{draw.choice(('kill', 'hang', 'oom', 'error'))}@{draw.randrange(2)}:{step}" for step in steps]
    calm = started(data, tmp_path / "calm")
    assert calm.returncode == 0, calm.stderr
    options = ("--max-restarts", "20", "--stall-seconds", "4")
    done = started(data, tmp_path / "rough", *options, faults=",".join(faults))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "rough" / "ranks").glob("fault-*"))) == 20
    assert done.stderr.count("all ranks start again") == 20
    assert_same_run(tmp_path / "calm", tmp_path / "rough")
