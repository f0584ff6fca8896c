"""Ending a rank when its launcher is gone: a launcher that is killed can't end its ranks itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

VARIABLE = "HASTEN_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Kill this process once its parent, which `VARIABLE` names, has gone (Linux). Without it nothing happens.

    By the kernel: at once, and also if this process is stopped or never releases the GIL. SIGKILL, as after a SIGKILL
    of a run in one process: a rank whose peers are dying can't agree with them on a step to save, and nothing that is
    written in place of something else is lost, since checkpoints appear by a rename.
    """
    pid = int(os.environ.get(VARIABLE, "0"))
    if not pid or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        os.kill(os.getpid(), signal.SIGKILL)
