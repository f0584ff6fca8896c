"""A rank whose launcher has gone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import psutil
import pytest

from hasten.distribute.world import LAUNCHER_PID

RANK = """from hasten.distribute.world import end_with_launcher
end_with_launcher(); print('up', flush=True); {}"""


def rank_of(launcher: int, what: str) -> list[str]:
    return ["env", f"{LAUNCHER_PID}={launcher}", sys.executable, "-c", RANK.format(what)]


@pytest.mark.timeout(60)
def test_a_launcher_that_is_killed() -> None:
    """Through a pipe that only the rank holds open at the end."""
    rank = shlex.join(rank_of(0, "import time; time.sleep(600)")).replace(f"{LAUNCHER_PID}=0", f"{LAUNCHER_PID}=$$")
    with subprocess.Popen(["sh", "-c", f"{rank} & wait"], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        ranks = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
        try:
            assert launcher.stdout.read() == ""  # until the rank has ended
        finally:
            for process in ranks:
                if process.is_running():
                    process.kill()


def test_a_launcher_that_was_killed_before_the_rank_began() -> None:
    with subprocess.Popen(["true"]) as launcher:
        pass
    done = subprocess.run(rank_of(launcher.pid, "pass"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-9, "")


def test_without_a_launcher() -> None:
    assert LAUNCHER_PID not in os.environ
    done = subprocess.run([sys.executable, "-c", RANK.format("pass")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "up\n")
