"""One run at a time in a run directory: that of the process which holds the lock of `.lock`, a file that names it.

The system releases the lock however the process ends. File systems that several hosts share pass it on to all of them:
NFS does, Lustre where it is mounted with `flock`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hasten.observe.rundir import LOCK, check_run_dir
from hasten.system import BINARY, remove_lock, try_lock

log = logging.getLogger(__name__)

_PATIENCE_S = 195.0
"""Seconds that a start of a job waits for an earlier start: a file server notices late that a host is down."""
_TRIES = 1000
"""Attempts to create the file in a folder that other processes remove."""


@contextmanager
def run_lock(out: Path, *, resume: bool, patient: bool = False) -> Iterator[None]:
    """Hold the run directory `out` for this process; a new one is made, and removed again if it stays empty.

    patient: wait for an owner that may be an earlier start of the same job.
    Raises ValueError that names the owner, or explains why `out` can't be used for such a run.
    """
    check_run_dir(out, resume=resume)
    existed, pid, path = out.exists(), os.getpid(), out / LOCK
    try:
        handle = _claim(path, time.monotonic() + (_PATIENCE_S if patient else 0.0))
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    try:
        yield
    finally:
        if os.getpid() == pid:  # a child that was forked meanwhile owns nothing
            remove_lock(path, handle)
            if not existed:
                with suppress(OSError):
                    out.rmdir()


def _claim(path: Path, deadline: float) -> int:
    """The open lock file, now this process's. Raises ValueError for an owner that holds it beyond the deadline."""
    waits, tries = False, 0
    while (handle := _try(path)) is None:
        owner = _read(path)
        if owner is None:  # another process has just removed the file or the empty folder; /proc, say, never takes one
            tries += 1
            if tries > _TRIES:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            continue
        if time.monotonic() >= deadline:
            remedy = "wait for it, stop it, or choose another --out"
            raise ValueError(f"{path.parent}: another {_text(owner)} is training there; {remedy}")
        if not waits:
            waits = True
            log.warning("%s: waiting until the earlier %s ends", path.parent, _text(owner))
        time.sleep(0.25)
    before = _read(path) or {}
    if before.get("host", platform.node()) != platform.node():
        log.warning("%s: taken over from a %s, which did not end by itself", path.parent, _text(before))
    os.ftruncate(handle, 0)
    owner = {"host": platform.node(), "pid": os.getpid(), "since": time.time()}
    os.write(handle, json.dumps(owner).encode())
    return handle


def _try(path: Path) -> int | None:
    """The open lock file; None where another process holds it, or removed its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return try_lock(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
        log.warning("%s: its file system has no locks; see to it that no other run trains there", path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o666)


def _read(path: Path) -> dict[str, Any] | None:
    """The owner in a lock file, empty where it is half written; None if there is no file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise
    except (ValueError, TypeError):
        return {}


def _text(owner: dict[str, Any]) -> str:
    if not {"host", "pid", "since"} <= owner.keys():
        return "run"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner["since"]))
    return f"run (pid {owner['pid']} on host {owner['host']}, started {started})"
