"""One run at a time in a run directory, whichever hosts and containers see it.

The lock is the file `.lock`, created exclusively. It names its owner, who renews its time. Whether an owner on this
kernel is alive is looked up by process number and start time. An owner elsewhere, or in another container, is dead once
its file has not been renewed for `_STALE_S`.

Several processes may find the same owner dead. Each then tries to create `.lock.TOKEN`, TOKEN being the dead owner's;
one succeeds, checks that this owner is still the last one, and renames its file to `.lock`. No token is used twice, so
a slow process can't take the lock of an owner that has come since.
"""

from __future__ import annotations

import _thread
import errno
import json
import logging
import math
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex

from hasten.files import boot_id, pid_namespace
from hasten.observe.rundir import LOCK, check_run_dir

log = logging.getLogger(__name__)

_BEAT_S = 15.0
"""Seconds between renewals."""
_STALE_S = 180.0
"""Far above a beat: a file server may show a time that is a minute old."""
_TRIES = 1000
"""Attempts to create a lock file among competing processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The content of a lock file: the process that holds it."""

    token: str
    host: str = ""
    place: str = ""
    """Kernel and PID namespace, as `_place` returns them."""
    pid: int = 0
    birth: str | None = None
    """Start of the process, as `_birth` returns it."""
    since: float = 0.0
    """Seconds since 1970."""

    def __str__(self) -> str:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        return f"run (pid {self.pid} on host {self.host}, started {started})" if self.host else "run"


@contextmanager
def run_lock(out: Path, *, resume: bool, patient: bool = False) -> Iterator[None]:
    """Hold the run directory `out` for this process; a new one is made, and removed again if it stays empty.

    patient: wait for an owner that may be an earlier start of the same job until it ends or counts as dead.
    Raises ValueError that names the owner, or explains why `out` can't be used for such a run.
    """
    check_run_dir(out, resume=resume)
    existed, pid, over = out.exists(), os.getpid(), threading.Event()
    try:
        handle, token = _claim(out, time.monotonic() + (_STALE_S + _BEAT_S if patient else 0.0))
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    renewal = threading.Thread(target=_renew, args=(out / LOCK, token, over), name="run lock", daemon=True)
    try:
        renewal.start()
        yield
    finally:
        if os.getpid() == pid:  # a child that was forked meanwhile owns nothing
            over.set()
            renewal.join()
            _release(out / LOCK, handle, token)
            if not existed:
                with suppress(OSError):
                    out.rmdir()


def _claim(out: Path, deadline: float) -> tuple[int, str]:
    """The open lock file, now this process's, and its token. Raises ValueError for an owner that is alive."""
    lock, waits, tries = out / LOCK, False, 0
    while True:
        out.mkdir(parents=True, exist_ok=True)
        path, owner = _owner(lock)
        if owner is not None and _is_alive(path, owner):
            if time.monotonic() >= deadline:
                remedy = "wait for it, stop it, or choose another --out"
                if owner.place != _place():
                    silent = f"its last sign came {_silent_s(path):.0f} s ago"
                    remedy += f" ({silent}; after {_STALE_S:.0f} s it counts as dead)"
                raise ValueError(f"{out}: another {owner} is training there; {remedy}")
            if not waits:
                waits = True
                log.warning("%s: waiting until the earlier %s ends or counts as dead", out, owner)
            time.sleep(0.25)
            continue
        silent_s = _silent_s(path) if owner is not None else 0.0
        try:
            claim = lock if owner is None else lock.with_name(f"{LOCK}.{owner.token}")
            handle, token = _create(claim)
        except (FileExistsError, FileNotFoundError):
            # Another process was faster, or removed the empty folder; but /proc, say, never takes a file.
            tries += 1
            if tries > _TRIES:
                raise
            continue
        if owner is not None:
            _, last = _owner(lock)
            if last is None or last.token != token:
                _release(claim, handle, token)
                continue
            claim.replace(lock)
            if owner.place != _place():
                log.warning("%s: taken over from a %s, which gave no sign for %.0f s", out, owner, silent_s)
        for leftover in out.glob(f"{LOCK}.*"):  # of processes that were killed while they took over
            leftover.unlink(missing_ok=True)
        return handle, token


def _create(path: Path) -> tuple[int, str]:
    owner = Owner(
        token=token_hex(8),
        host=platform.node(),
        place=_place(),
        pid=os.getpid(),
        birth=_birth(os.getpid()),
        since=time.time(),
    )
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(handle, json.dumps(asdict(owner)).encode())
    except BaseException:
        path.unlink(missing_ok=True)
        os.close(handle)
        raise
    return handle, owner.token


def _release(path: Path, handle: int, token: str) -> None:
    with suppress(OSError):
        owner = _read(path)
        if owner is not None and owner.token == token:
            path.unlink()
    os.close(handle)


def _renew(lock: Path, token: str, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        with suppress(OSError):
            owner = _read(lock)
            if owner is not None and owner.token != token:
                log.error("%s: this run was suspended for so long that another %s took over; it stops", lock, owner)
                _thread.interrupt_main()
                return
            os.utime(lock)


def _read(path: Path) -> Owner | None:
    """The owner in a lock file; None if there is no file."""
    try:
        with path.open("rb") as file:
            try:
                return Owner(**json.loads(file.read()))
            except (ValueError, TypeError):  # half written, or of another version
                return Owner(token=f"inode-{os.fstat(file.fileno()).st_ino}")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise


def _owner(lock: Path) -> tuple[Path, Owner | None]:
    """The last owner and its file, which has another name if a take-over is in progress or was interrupted."""
    path, owner = lock, _read(lock)
    while owner is not None:
        after = lock.with_name(f"{LOCK}.{owner.token}")
        successor = _read(after)
        if successor is None:
            break
        path, owner = after, successor
    return path, owner


def _is_alive(path: Path, owner: Owner) -> bool:
    birth = _birth(owner.pid) if owner.place == _place() else None
    return birth == owner.birth if birth is not None else _silent_s(path) < _STALE_S


def _place() -> str:
    return f"{boot_id() or platform.node()}-{pid_namespace()}"


def _birth(pid: int) -> str | None:
    """Start time of a process by the kernel's clock; "" if it has ended, None if that can't be determined."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else fields[18]


def _silent_s(path: Path) -> float:
    """Seconds since a file was renewed, by the clock of its file system: those of two hosts may differ."""
    try:
        with path.open("rb") as file, tempfile.TemporaryFile(dir=path.parent) as new:
            return abs(os.fstat(new.fileno()).st_mtime - os.fstat(file.fileno()).st_mtime)
    except FileNotFoundError:
        return math.inf
