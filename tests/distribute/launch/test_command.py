"""Jobs of two processes that fail, are stopped, and start again."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

import psutil
import pytest
import torch

from hasten.distribute.launch.agent import launch
from hasten.distribute.launch.job import Job

HOST = Path(__file__).parent / "host.py"
STEPS = 24


@contextmanager
def own_signals() -> Iterator[None]:
    """torch's launcher takes the signals of its process and does not give them back."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(
    out: Path, *more: str, faults: str = "", restarts: int = 0, stall_s: float | None = None, steps: int = STEPS
) -> tuple[int, str]:
    """Exit code of a job of two, and what its launcher told."""
    job = Job(nproc=2, out=out, max_restarts=restarts, stall_s=stall_s)
    command = ["-m", "tests.distribute.launch.rank", str(out), str(steps), *more]
    with pytest.MonkeyPatch.context() as patch, own_signals(), redirect_stderr(io.StringIO()) as output:
        for name, value in {"HASTEN_FAULT": faults, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        patch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "")  # put back as it was
        code = launch(job, command, again="AGAIN", resume="RESUME")
    return code, output.getvalue().rstrip("\n")


@contextmanager
def training(out: Path) -> Iterator[subprocess.Popen[str]]:
    """The launcher of two ranks that train, slowly, and have saved. They end with the block."""
    command = [sys.executable, str(HOST), str(out), "0", "1", "-", "100000", "slow"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as launcher:
        ranks: list[psutil.Process] = []
        try:
            wait_for(lambda: (out / "last.pt").exists() or launcher.poll() is not None)
            ranks = psutil.Process(launcher.pid).children()
            yield launcher
        finally:
            for process in (launcher, *ranks):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; false for a zombie too."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def weights(out: Path) -> dict[str, torch.Tensor]:
    state = torch.load(out / "last.pt")
    assert state["step"] == STEPS
    return {**state["network"], "momentum": state["optimizer"]["state"][0]["momentum_buffer"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("undisturbed")
    assert start(out) == (0, "")
    return weights(out)


def assert_same(out: Path, wanted: dict[str, torch.Tensor]) -> None:
    result = weights(out)
    assert result.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(result[name], tensor), name


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_stop_is_no_failure_and_a_killed_rank_is_made_good(
    tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """One rank is told to stop: both save the same step. Going on, one is killed: both start again."""
    assert start(tmp_path, faults="sigterm@1:6", restarts=1) == (143, "")
    stopped = {(tmp_path / f"stopped-{rank}").read_text() for rank in range(2)}
    assert stopped == {str(torch.load(tmp_path / "last.pt")["step"])}

    code, message = start(tmp_path, faults="sigterm@1:6,kill@1:14", restarts=1)
    assert code == 0
    assert message.startswith("warning: rank 1 on ")
    assert "was killed by SIGKILL" in message
    assert message.endswith("all ranks start again (1 of 1)")
    assert_same(tmp_path, undisturbed)
    logs = {path.name for path in tmp_path.glob("logs/*/rank-*.log")}
    assert {"rank-0.0.log", "rank-1.0.log", "rank-0.1.log", "rank-1.1.log"} <= logs


@pytest.mark.timeout(60)
def test_the_first_failure_is_told_first_with_its_traceback(tmp_path: Path) -> None:
    code, message = start(tmp_path, faults="error@1:6")
    assert code == 1
    lines = message.splitlines()
    assert lines[0].startswith("error: rank 1 of 2 on ")
    assert "failed first: " in lines[0]
    assert lines[0].endswith(" RuntimeError: error injected after step 6 by HASTEN_FAULT")
    assert "befall(step)" in message
    assert message.count("Traceback") == 1
    assert lines[-3].startswith("rank 0 on ")
    assert lines[-3].endswith(": ended as rank 1 was gone")
    assert lines[-1] == "nothing was saved yet; start again: AGAIN"
    (report,) = tmp_path.glob("logs/*/failure.txt")
    assert report.read_text() == message + "\n"
    assert "error injected after step 6" in (report.parent / "rank-1.0.log").read_text()


@pytest.mark.timeout(60)
def test_a_mistake_is_one_line_and_no_restart_mends_it(tmp_path: Path) -> None:
    code, message = start(tmp_path, "wrong", restarts=2)
    assert (code, message) == (2, "error: train.steps: is wrong; put it right")
    assert not list(tmp_path.glob("logs/*/rank-*.1.log"))


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGUSR1, 75, marks=pytest.mark.slow)]
)
def test_a_launcher_that_is_told_to_stop_has_the_run_saved(tmp_path: Path, number: int, code: int) -> None:
    with training(tmp_path) as launcher:
        launcher.send_signal(number)
        assert launcher.communicate(timeout=600)[1] == ""
    assert launcher.returncode == code
    stopped = {(tmp_path / f"stopped-{rank}").read_text() for rank in range(2)}
    assert stopped == {str(torch.load(tmp_path / "last.pt")["step"])}


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_launcher_that_is_killed_takes_its_ranks_along(tmp_path: Path) -> None:
    """Also one that is stopped, which can do nothing about it itself."""
    with training(tmp_path) as launcher:
        ranks = psutil.Process(launcher.pid).children()
        assert len(ranks) == 2
        ranks[1].suspend()
        launcher.kill()
        wait_for(lambda: not any(is_alive(rank) for rank in ranks))
    assert torch.load(tmp_path / "last.pt")["step"] > 0
    assert not list(tmp_path.glob("stopped-*"))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_rank_that_hangs_is_the_one_that_is_named(tmp_path: Path) -> None:
    """Rank 0 stands still as well, in a collective."""
    code, message = start(tmp_path, faults="hang@1:6", stall_s=3.0)
    assert code == 124
    lines = message.splitlines()
    assert "rank 1 of 2" in lines[0]
    assert "made no step after step 5" in lines[0]
    assert lines[1] == "what it was doing:"
    assert "in _inject" in message
    assert lines[-3].endswith(": waited for rank 1 after step 6") or lines[-3].endswith(": ended as rank 1 was gone")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rank_out_of_memory(tmp_path: Path) -> None:
    code, message = start(tmp_path, faults="oom@0:6")
    assert code == 1
    assert "rank 0 of 2" in message.splitlines()[0]
    assert message.splitlines()[0].endswith("it ran out of memory")
    assert "allocate memory" in message
    assert message.splitlines()[-1].startswith("take a smaller sample.batch_size")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_rank_that_hangs_is_made_good_too(tmp_path: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    code, message = start(tmp_path, faults="hang@0:9", stall_s=3.0, restarts=1)
    assert code == 0, message
    assert_same(tmp_path, undisturbed)


def test_records_are_those_of_torchrun_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that torchrun, which starts ranks without us, shows the traceback."""
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from hasten.distribute.launch.record import recorded

    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    with pytest.raises(KeyError), recorded(short_of_memory=lambda error: False):
        raise KeyError("gone")
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    assert "KeyError" in failure.message["extraInfo"]["py_callstack"]
    assert json.loads(path.read_text())["hasten"]["kind"] == "error"
