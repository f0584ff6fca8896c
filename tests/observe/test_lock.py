from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hasten.cache.publish import building
from hasten.observe.lock import run_lock
from hasten.observe.rundir import LOCK, RUN_YAML

HOLD = """
import sys, time
from pathlib import Path
from hasten.observe.lock import run_lock
with run_lock(Path(sys.argv[1]), resume=False):
    print("held", flush=True)
    time.sleep(60)
"""
CLAIM = """
import sys, time
from pathlib import Path
from hasten.observe.lock import run_lock
out, start = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not start.exists():
    pass
try:
    with run_lock(out, resume=False):
        print("won", flush=True)
        sys.stdin.read()
except ValueError as error:
    print(error, flush=True)
"""


def start(code: str, *arguments: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_live_run_is_named_and_a_killed_one_is_followed_at_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(HOLD, out)
    assert line(process) == "held"
    message = rf"run: .*\(pid {process.pid} .*started ....-..-.. ..:..\) .*wait"
    for _ in range(2):
        with pytest.raises(ValueError, match=message), run_lock(out, resume=False):
            raise AssertionError
    process.send_signal(signal.SIGKILL)
    # Not waited for: to the system the dead process is a zombie, whose number is still taken.
    while Path(f"/proc/{process.pid}/stat").exists() and ") Z " not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.001)
    with run_lock(out, resume=False):
        assert json.loads((out / LOCK).read_text())["pid"] == os.getpid()
    process.communicate()


def test_of_many_claimants_one_wins(tmp_path: Path) -> None:
    out, signal_file = tmp_path / "run", tmp_path / "start"
    processes = [start(CLAIM, out, signal_file) for _ in range(8)]
    for process in processes:
        assert line(process) == "ready"
    signal_file.touch()
    results = [line(process) for process in processes]
    for process in processes:
        process.communicate()
    assert results.count("won") == 1, results
    assert sum("another run" in each for each in results) == 7, results
    assert not out.exists() or not any(out.iterdir()), "a loser may have made the folder"


def test_what_a_killed_run_left_is_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for left in ("", "{", json.dumps({"host": "node7", "pid": 4321, "since": 1.7e9})):
        (tmp_path / LOCK).write_text(left)
        with run_lock(tmp_path, resume=False):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert not any(tmp_path.iterdir())
    (message,) = caplog.messages
    assert "taken over from a run (pid 4321 on host node7, started" in message


def test_a_start_of_the_same_job_waits_for_the_earlier_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = start(HOLD, tmp_path)
    assert line(process) == "held"
    threading.Timer(0.5, process.kill).start()
    with run_lock(tmp_path, resume=False, patient=True):
        assert process.wait(60) != 0
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}: waiting ")
    assert f"(pid {process.pid} on host" in message
    process.communicate()


def test_a_file_system_without_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_lock(tmp_path, resume=False):
        assert (tmp_path / LOCK).exists()
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}: its file system has no locks")


def test_the_folder_is_free_after_any_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for error in (None, RuntimeError(), KeyboardInterrupt()):
        with suppress(RuntimeError, KeyboardInterrupt), run_lock(out, resume=False):
            assert (out / LOCK).exists()
            if error is not None:
                raise error
        assert not out.exists()
    with run_lock(out, resume=False):
        (out / "kept").touch()
    assert [path.name for path in out.iterdir()] == ["kept"]


@pytest.mark.parametrize("held", [lambda at: run_lock(at, resume=False), lambda at: building(at / "cases", bool)])
def test_a_forked_child_releases_and_publishes_nothing(tmp_path: Path, held: Any) -> None:
    with held(tmp_path):
        before = sorted(tmp_path.iterdir())
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
            assert sorted(tmp_path.iterdir()) == before
    if child == 0:
        os._exit(0)


def test_what_is_no_place_for_a_run_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out, resume, message in (
        (tmp_path / "file", False, "is a file"),
        (tmp_path / "file" / "below", False, "cannot be written to"),
        (tmp_path / "none", True, rf"holds no run to resume \({RUN_YAML}"),
    ):
        with pytest.raises(ValueError, match=message), run_lock(out, resume=resume):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
