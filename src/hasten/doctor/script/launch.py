"""Run the script with the probe on its PYTHONPATH for a bounded number of steps and seconds, then end its processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from hasten.doctor.script.records import ProcessRecord, read_records
from hasten.observe.cores import SPIN_NAMES, environment_of_user, usable_cores

Ended = Literal["finished", "bounded", "crashed", "timeout", "never trained"]
INJECT = Path(__file__).parent / "inject"
GRACE = 10.0
"""Seconds that a script has after its bound to write its files and to exit."""
_END_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""
SETUP = 600.0
"""Seconds that a script may take until its first step ends; they don't count as watched time."""
_TAIL_BYTES = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRun:
    """The result of one run of a script."""

    command: tuple[str, ...]
    exit_code: int
    """The script's own exit code, or 128 + the number of the signal that ended it; 0 if the doctor stopped it."""
    ended: Ended
    records: list[ProcessRecord] = field(default_factory=list)
    """Records of the processes that trained, by rank."""
    seconds: float = 0.0
    output: str = ""
    """Last 20,000 characters of its stdout and stderr, of a quiet run only."""
    torch_seen: bool = True
    """Whether any of its processes imported torch."""


def run_script(
    command: Sequence[str],
    *,
    steps: int,
    seconds: float,
    experiments: bool = True,
    assume_cuda: bool = False,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
    setup: float = SETUP,
) -> ScriptRun:
    """Run `command` for `steps` training steps or `seconds`, then end it and everything that it started.

    The seconds count from the end of its first step; before that it has `setup` seconds to write data or to compile.

    It inherits stdin, stdout and stderr (quiet: the latter two go into `output`). experiments: after the last step,
    measure in its main process for up to half of `seconds` more. assume_cuda: judge as if there were a GPU. env: added
    to the environment. Raises ValueError for a command that can't be run.
    """
    runnable = checked(command)
    budget = max(10.0, seconds / 2) if experiments else 0.0
    with tempfile.TemporaryDirectory(prefix="hasten-doctor-") as folder, tempfile.TemporaryFile() as log:
        out = Path(folder)
        request = {"out": folder, "steps": steps, "seconds": seconds, "start": time.time(), "budget": budget}
        request |= {"experiments": experiments, "cuda": assume_cuda, "cores": usable_cores(), "spin": SPIN_NAMES}
        start = time.perf_counter()
        child = subprocess.Popen(
            runnable,
            env=_environment(env or {}, json.dumps(request)),
            stdout=log if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
            # A session of its own, so that everything it starts can be ended; Ctrl-C must then be passed on.
            start_new_session=True,
        )
        killed = _watch(child, out, seconds, budget, setup)
        took_s = time.perf_counter() - start
        records = read_records(out)
        ended, code = _outcome(child.returncode, killed, records)
        log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return ScriptRun(
            command=tuple(command),
            exit_code=code,
            ended=ended,
            records=records,
            seconds=took_s,
            output=log.read().decode("utf-8", "replace"),
            torch_seen=any(out.glob("torch-*")),
        )


def checked(command: Sequence[str]) -> list[str]:
    """`command` as it can be run: `train.py args` becomes `python train.py args`.

    Raises ValueError for an empty command, and a program or script that isn't there. `python -m module`, torchrun and
    shell scripts stay as they are.
    """
    if not command:
        raise ValueError("no command was given; put it after two dashes: hasten doctor -- python train.py")
    program, *rest = command
    if program.endswith(".py") and (os.name == "nt" or not os.access(program, os.X_OK)):
        if not Path(program).exists():
            raise ValueError(f"{program}: does not exist; check the path (seen from {Path.cwd()})")
        return [sys.executable, *command]
    if shutil.which(program) is not None:
        return list(command)
    if program in ("python", "python3"):
        return [sys.executable, *rest]
    problem = "is not a program" if Path(program).exists() else "does not exist"
    raise ValueError(f"{program}: {problem}; give the command as you'd type it, such as python train.py")


def _environment(more: Mapping[str, str], request: str) -> dict[str, str]:
    env = {**environment_of_user(), **more}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(INJECT), env.get("PYTHONPATH", "")]))
    env["HASTEN_DOCTOR"] = request
    # Write no __pycache__ into the script's folder.
    env.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    return env


def _watch(child: subprocess.Popen[bytes], out: Path, seconds: float, budget: float, setup: float) -> bool:
    """Wait until the script ends, or end it at its limit. Returns whether it had to be killed."""
    start = time.monotonic()
    trains, limit = math.inf, math.inf
    try:
        while child.poll() is None:
            now = time.monotonic()
            time.sleep(0.02 if now - start < 2 else 0.1)
            state = _state(out)
            if state:
                trains = min(trains, now)
            if state == "experiments":
                needed = trains + seconds + 1.5 * budget + GRACE
                limit = needed if limit == math.inf else max(limit, needed)
            elif state == "bounded":
                limit = min(limit, now + GRACE)
            elif limit == math.inf and now - trains > seconds:
                limit = now + GRACE / 2  # A step that has begun may finish.
            elif limit == math.inf and trains == math.inf and now - start > setup:
                limit = now + 0.5
            if now > limit:
                end_all(child)
                return True
        return False
    except BaseException:
        # Ctrl-C is passed on, and the script has time to end by itself.
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired, KeyboardInterrupt):
            if hasattr(os, "killpg"):  # the consoles of Windows do it
                os.killpg(child.pid, signal.SIGINT)
            child.wait(timeout=GRACE)
        end_all(child)
        raise


def _state(out: Path) -> str:
    """`experiments`, `bounded` (every process that trained has reached its bound), `training` or ""."""
    if any(out.glob("experiments-*")):
        return "experiments"
    trained, bounded = ({path.name.split("-")[1] for path in out.glob(f"{name}-*")} for name in ("trains", "bounded"))
    if trained:
        return "bounded" if trained <= bounded else "training"
    return ""


def _outcome(returncode: int, killed: bool, records: list[ProcessRecord]) -> tuple[Ended, int]:
    code = 128 - returncode if returncode < 0 else returncode
    if records and all(record.ended in ("steps", "seconds") for record in records):
        return "bounded", 0
    if killed:
        return ("timeout" if records else "never trained"), code
    return ("crashed" if code else "finished" if records else "never trained"), code


def end_all(child: subprocess.Popen[bytes], grace: float = _END_GRACE) -> None:
    """SIGTERM to `child`, its descendants and its process group, SIGKILL to what is left after `grace` seconds.

    child: the leader of a session. Launchers put ranks into separate process groups, so descendants are ended too, and
    all processes of the session whose parents have exited.
    """
    ours = _members(child.pid)
    for member in ours:
        with contextlib.suppress(psutil.Error):
            member.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(ours, timeout=grace) if ours else ([], [])
    for member in alive:
        with contextlib.suppress(psutil.Error):
            member.kill()
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _members(leader: int) -> list[psutil.Process]:
    members: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(leader)
        if top.status() != psutil.STATUS_ZOMBIE:
            members = {each.pid: each for each in (top, *top.children(recursive=True))}
    for process in psutil.process_iter() if hasattr(os, "getsid") else ():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if process.pid not in members and os.getsid(process.pid) == leader and process.pid != leader:
                members[process.pid] = process
    return list(members.values())
