from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hasten.observe import lock
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
from hasten.observe import lock
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


def write_owner(path: Path, *, age_s: float = 0.0, **changes: Any) -> None:
    """The lock file of another host's run, last renewed so many seconds ago."""
    owner = {"token": "aa", "host": "node7", "place": "k-1", "pid": 4321, "birth": "5"}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**owner, "since": 1.7e9, **changes}))
    os.utime(path, (time.time() - age_s,) * 2)


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


def test_a_number_that_another_process_has_now_is_no_owner(tmp_path: Path) -> None:
    mine = {"place": lock._place(), "pid": os.getpid()}
    write_owner(tmp_path / LOCK, **mine, birth="1")
    with run_lock(tmp_path, resume=False):
        pass
    write_owner(tmp_path / LOCK, age_s=1e6, **mine, birth=lock._birth(os.getpid()))
    with pytest.raises(ValueError, match="another run"), run_lock(tmp_path, resume=False):
        raise AssertionError


def test_another_container_is_told_by_its_renewals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path, resume=False):
        monkeypatch.setattr(lock, "pid_namespace", lambda: 7)
        with pytest.raises(ValueError, match="another run"), run_lock(tmp_path, resume=False):
            raise AssertionError
        os.utime(tmp_path / LOCK, (0, 0))
        with run_lock(tmp_path, resume=False):
            pass


def test_a_fresh_owner_on_another_host_is_refused(tmp_path: Path) -> None:
    write_owner(tmp_path / LOCK, age_s=100)
    before = (tmp_path / LOCK).read_bytes()
    message = r"pid 4321 on host node7, .*; wait .* 10\d s ago; .*180 s"
    with pytest.raises(ValueError, match=message), run_lock(tmp_path, resume=False):
        raise AssertionError
    assert (tmp_path / LOCK).read_bytes() == before


def test_a_stale_owner_on_another_host_is_taken_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_owner(tmp_path / LOCK, age_s=1000)
    with run_lock(tmp_path, resume=False):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert "taken over from a run (pid 4321 on host node7, started" in caplog.text
    assert "gave no sign for 1000 s" in caplog.text
    assert not any(tmp_path.iterdir())


def test_a_take_over_that_was_cut_off_is_followed(tmp_path: Path) -> None:
    write_owner(tmp_path / LOCK, age_s=1000)
    write_owner(tmp_path / f"{LOCK}.aa", age_s=10, token="bb")
    with pytest.raises(ValueError, match=r"its last sign came 1. s ago"), run_lock(tmp_path, resume=False):
        raise AssertionError
    os.utime(tmp_path / f"{LOCK}.aa", (0, 0))
    with run_lock(tmp_path, resume=False):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_claimants_one_wins(tmp_path: Path, stale: bool) -> None:
    out, signal_file = tmp_path / "run", tmp_path / "start"
    if stale:
        write_owner(out / LOCK, age_s=1000)
    processes = [start(CLAIM, out, signal_file) for _ in range(8)]
    for process in processes:
        assert line(process) == "ready"
    signal_file.touch()
    results = [line(process) for process in processes]
    for process in processes:
        process.communicate()
    assert results.count("won") == 1, results
    # A claimant that is about to take over a dead one's lock may be named, though another was faster.
    others = {f"another run (pid {process.pid} " for process in processes}
    assert sum(any(other in each for other in others) for each in results) == 7, results
    assert not out.exists() or not any(out.iterdir())


def test_a_half_written_file_is_believed_by_its_time(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with pytest.raises(ValueError, match="another run is training there"), run_lock(tmp_path, resume=False):
        raise AssertionError
    os.utime(tmp_path / LOCK, (0, 0))
    with run_lock(tmp_path, resume=False):
        pass


def test_a_start_of_the_same_job_waits_for_the_earlier_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_owner(tmp_path / LOCK, age_s=lock._STALE_S - 0.1)
    with run_lock(tmp_path, resume=False, patient=True):
        pass
    assert caplog.messages[0].startswith(f"{tmp_path}: waiting ")
    assert "(pid 4321 on host node7" in caplog.messages[0]


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


def test_the_lock_is_renewed_and_its_loss_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lock, "_BEAT_S", 0.01)
    interrupted = lock.threading.Event()
    monkeypatch.setattr(lock._thread, "interrupt_main", interrupted.set)
    with run_lock(tmp_path, resume=False):
        os.utime(tmp_path / LOCK, (0, 0))
        while (tmp_path / LOCK).stat().st_mtime == 0:
            time.sleep(0.001)
        write_owner(tmp_path / "new", token="dd")
        (tmp_path / "new").replace(tmp_path / LOCK)
        assert interrupted.wait(10)
    assert "another run (pid 4321 on host node7" in caplog.text
    assert json.loads((tmp_path / LOCK).read_text())["token"] == "dd"


def test_a_forked_child_releases_nothing(tmp_path: Path) -> None:
    with run_lock(tmp_path, resume=False):
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
            assert (tmp_path / LOCK).exists()
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
