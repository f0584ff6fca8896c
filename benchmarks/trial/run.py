"""Runs trials: each in a fork of one process that has imported everything and calls what `hasten` calls."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import resource
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.trial.judge import Ended, Expect, Verdict, judge

SECONDS = 30.0
"""A command that takes longer hangs. Most take below two seconds; the rest is for a busy machine."""
_MEMORY = 6 << 30
_FILE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a trial gives `hasten`, and what a user wants of it."""

    args: Sequence[str]
    expect: Expect = "refused"
    names: Sequence[str] = ()
    """A clear message has one of them in it: the file, field or option that is wrong."""
    may_change: Sequence[str] = ("out", "cache")
    """Names in the trial's folder that the command may write to; any other file must stay as it was."""
    check: Callable[[Ended], str] | None = None
    """Looks at what the command left; the damage in words, or nothing."""
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True)
class Trial:
    family: str
    name: str
    act: Callable[[Box], Command | Verdict]
    """Makes the bad input in the trial's folder. A trial of several commands runs them itself and gives a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Where one trial happens."""

    folder: Path
    """Its own, empty, and the current one of its commands."""
    base: Path
    """What trials copy from: `benchmarks.trial.base` says what is there."""

    def start(self, args: Sequence[str]) -> Process:
        """`hasten ARGS` as a process beside this one."""
        log = self.folder.parent / f"{time.monotonic_ns()}"
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_hasten(args, self.folder, log)
        return Process(pid, log)

    def hasten(self, *args: str, seconds: float = SECONDS) -> Ended:
        return self.start(args).wait(seconds)


class Process:
    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log, self.started = pid, log, time.monotonic()

    def text(self, name: str) -> str:
        path = Path(f"{self.log}.{name}")
        return path.read_bytes().decode(errors="replace") if path.exists() else ""

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = SECONDS) -> Ended:
        hang = False
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            took = time.monotonic() - self.started
            if pid:
                err = self.text("err")
                code = os.waitstatus_to_exitcode(status)
                return Ended(code=code, text=self.text("out") + err, err=err, hang=hang, seconds=took)
            if took > seconds and not hang:
                hang = True
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "HASTEN_CACHE": str(folder / "cache"),
        "HASTEN_DATA": str(folder / "data-home"),
        "COLUMNS": "200",
        "TERMINAL_WIDTH": "200",
    }


def _be_hasten(args: Sequence[str], folder: Path, log: Path) -> None:
    """Become the command; never returns. Ends as the interpreter would end it."""
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{log}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ.update(_environment(folder))
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
        sys.argv = ["hasten", *args]
        from hasten.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def run_trials(trials: Sequence[Trial], base: Path, work: Path, jobs: int, tell: Callable[[str], None]) -> list[Any]:
    """All trials, `jobs` at a time; the record of each, in order."""
    running: dict[int, tuple[int, Path]] = {}
    records: dict[int, Any] = {}
    todo: Iterator[tuple[int, Trial]] = iter(enumerate(trials))
    started = time.monotonic()
    try:
        while len(records) < len(trials):
            while len(running) < jobs and (following := next(todo, None)) is not None:
                at, trial = following
                place = work / f"{at:04d}"
                running[_fork_trial(trial, place, base)] = (at, place)
            pid, _ = os.wait()
            if pid not in running:
                continue
            at, place = running.pop(pid)
            record = records[at] = _collected(trials[at], place)
            _end_group(pid)
            shutil.rmtree(place, ignore_errors=True)
            if record["verdict"] != "handled":
                tell(f"{record['verdict']:9} {record['family']}/{record['name']}: {record['why']}")
            if len(records) % 50 == 0:
                tell(f"{len(records)}/{len(trials)} trials in {time.monotonic() - started:.0f} s")
    finally:
        for leader in running:
            _end_group(leader)
    return [records[at] for at in range(len(trials))]


def _fork_trial(trial: Trial, place: Path, base: Path) -> int:
    shutil.rmtree(place, ignore_errors=True)
    (place / "w").mkdir(parents=True)
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    try:
        box = Box(folder=place / "w", base=base)
        os.chdir(box.folder)
        verdict = _tried(trial, box)
        (place / "verdict.json").write_text(json.dumps(asdict(verdict)))
        os._exit(0)
    except BaseException:
        (place / "broken.txt").write_text(traceback.format_exc())
        os._exit(1)


def _end_group(leader: int) -> None:
    """End what a trial may have left running."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _tried(trial: Trial, box: Box) -> Verdict:
    command = trial.act(box)
    if isinstance(command, Verdict):
        return command
    before = snapshot(box.folder, command.may_change)
    ended = box.start(command.args).wait(command.seconds)
    damage = changes(before, snapshot(box.folder, command.may_change))
    if not damage and command.check is not None:
        damage = command.check(ended)
    return judge(replace(ended, damage=damage), expect=command.expect, names=command.names)


def _collected(trial: Trial, place: Path) -> dict[str, Any]:
    output = place / "verdict.json"
    if not output.is_file():
        broken = place / "broken.txt"
        text = broken.read_text() if broken.is_file() else "ended without a verdict"
        verdict = Verdict(verdict="broken", why="the trial itself failed", output=text.splitlines()[-8:])
        return {"family": trial.family, "name": trial.name, **asdict(verdict)}
    return {"family": trial.family, "name": trial.name, **json.loads(output.read_text())}


def snapshot(folder: Path, but: Sequence[str]) -> dict[str, str]:
    """What each file below a folder holds, by its name; `but` are names in the folder that are left out."""
    held = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.partition("/")[0] in but:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            held[name] = f"link to {path.readlink()}"
        elif stat.S_ISREG(mode):
            held[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            held[name] = str(stat.S_IFMT(mode))
    return held


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What became of files that were there before, in words; new files are none of it."""
    gone = [name for name in before if name not in after]
    other = [name for name in before if name in after and after[name] != before[name]]
    results = [f"{what}: {', '.join(names[:5])}" for what, names in (("removed", gone), ("altered", other)) if names]
    return "; ".join(results)
