"""Ending a rank when its launcher is gone: a launcher that is killed can't end its ranks itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import psutil

VARIABLE = "HASTEN_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 1.0


def end_with_launcher() -> None:
    """Kill this process once the process that `VARIABLE` names has gone. Without the variable nothing happens.

    SIGKILL, as after a SIGKILL of a run in one process: a rank whose peers are dying can't agree with them on a step
    to save, and nothing that is written in place of something else is lost, since checkpoints appear by a rename.
    """
    pid = int(os.environ.get(VARIABLE, "0"))
    if not pid:
        return
    if sys.platform == "linux" and os.getppid() == pid:
        # By the kernel: immediately, and also if this process is stopped or never releases the GIL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # On other systems, or if the launcher is not the parent process, a thread polls.
    try:
        launcher = psutil.Process(pid)
    except psutil.NoSuchProcess:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=_end_after, args=(launcher,), name="launcher", daemon=True).start()


def _end_after(launcher: psutil.Process) -> None:
    while is_alive(launcher):
        time.sleep(_LOOK_EVERY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; false for a zombie too."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
