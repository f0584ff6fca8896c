"""Ending a program together with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import psutil

_GRACE = 3.0


def end_all(child: subprocess.Popen[bytes], grace: float = _GRACE) -> None:
    """SIGTERM to `child`, its descendants and its process group, SIGKILL to what is left after `grace` seconds.

    child: started as the leader of a session. Launchers put ranks into groups of their own, so descendants are looked
    up too, and so is whoever carries the session's id once the parents are gone.
    """
    ours = _members(child.pid)
    for member in ours:
        with contextlib.suppress(psutil.Error):
            member.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(ours, timeout=grace) if ours else ([], [])
    for member in alive:
        with contextlib.suppress(psutil.Error):
            member.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _members(leader: int) -> list[psutil.Process]:
    members: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(leader)
        if top.status() != psutil.STATUS_ZOMBIE:
            members = {each.pid: each for each in (top, *top.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if process.pid not in members and os.getsid(process.pid) == leader and process.pid != leader:
                members[process.pid] = process
    return list(members.values())
