"""Ranks started from inside Python, by a script without a guard and by a `__main__` without a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hasten.distribute.spawn import SPAWNED, spawn_ddp

SCRIPT = Path(__file__).with_name("spawning.py")
ROOT = Path(__file__).parents[2]
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    output = os.environ | LOOPBACK | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        [sys.executable, *command], env=output, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def found_by(*command: str) -> tuple[dict[str, Any], str]:
    done = ran(*command)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


def require_sum(result: dict[str, Any], printed: str) -> None:
    total, places, of_main = result["add"]
    assert total == 60
    assert places == [["0", "0", "2", "2"], ["1", "1", "2", "2"]]
    assert of_main, "the result is of another class than the script's"
    # Rank 0's, and no second run of the script. In torch 2.10 Gloo prints too.
    lines = [line for line in printed.splitlines() if not line.startswith("[Gloo]")]
    assert lines[:-1] == ["hello from rank 0"]


def test_functions_of_a_notebook(tmp_path: Path) -> None:
    """What is typed there is in no file that a rank could import."""
    result, printed = found_by("-c", SCRIPT.read_text(), "add", "fail")
    require_sum(result, printed)
    kind, message, cause = result["fail"]
    assert (kind, cause) == ("RankFailed", "KeyError")
    # Its own traceback, not that of the rank which it left waiting.
    assert message.startswith("rank 1 of 2:\nTraceback")
    assert 'KeyError: "the second rank\'s own"' in message


@pytest.mark.slow
def test_functions_of_a_script_without_a_guard() -> None:
    result, printed = found_by(str(SCRIPT), "add", "nested", "vanish", "late")
    require_sum(result, printed)
    assert result["nested"][0] == "RankFailed"
    assert result["nested"][2] == "ValueError"
    assert "would start ranks without end" in result["nested"][1]
    assert result["vanish"][:2] == [
        "RankFailed",
        "rank 1 of 2 was ended by signal 9\nlast lines of rank 1:\nlast words",
    ]
    assert result["late"][0] == "TimeoutError"


@pytest.mark.slow
def test_a_module_that_starts_ranks_as_it_is_imported_is_told_so(tmp_path: Path) -> None:
    """A rank imports it to find the function, which must not start ranks in turn."""
    (tmp_path / "careless.py").write_text(
        "from hasten.distribute.spawn import spawn_ddp\n\ndef work():\n    pass\n\nspawn_ddp(work, nprocs=2)\n"
    )
    done = ran("-c", "import careless", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 1
    assert 'put it under `if __name__ == "__main__":`' in done.stderr


def test_ranks_start_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPAWNED, "1")
    with pytest.raises(ValueError, match="without end"):
        spawn_ddp(print, nprocs=2)


def test_a_rank_of_another_launcher_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"rank 1 of 2 on .* already, started by torchrun"):
        spawn_ddp(print, nprocs=2)


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(ValueError, match="can't be sent to another process"):
        spawn_ddp(print, threading.Lock(), nprocs=2)
    with pytest.raises(ValueError, match="nprocs: 0"):
        spawn_ddp(print, nprocs=0)
