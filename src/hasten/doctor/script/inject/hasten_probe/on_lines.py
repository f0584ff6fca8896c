"""Samples of the training thread's stack, and the files that its lines open."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from .session import Session
from .sites import is_user, site_of, user_frame

EVERY = 0.005
"""Seconds between two samples."""
_NETWORK = ("wait", "backward", "optimizer", "checkpoint", "gradient_sync")
"""Spans that are reported separately."""


def watch(session: Session) -> None:
    """Sample the thread from the end of the first step until the session's end."""
    session.sampler = threading.Thread(target=_sample, args=(session, session.pid), name="hasten-doctor", daemon=True)
    session.sampler.start()


def _sample(session: Session, pid: int) -> None:
    at = time.perf_counter()
    while session.on and session.pid == pid:
        time.sleep(EVERY)
        now = time.perf_counter()
        if session.depth == 0:
            # Keep no frame here: the script's tensors would live on until the next sample.
            _note(session, sys._current_frames().get(session.thread), now - at)
        at = now


def _note(session: Session, frame: Any, seconds: float) -> None:
    inner = session.line.stack[-1]
    if frame is None or inner in _NETWORK:
        return  # Batches of a validation included.
    label = session.line.over or inner
    package = ""
    while frame is not None and not is_user(frame.f_code.co_filename):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        package = name if not package or name not in ("threading", "selectors", "collections") else package
        frame = frame.f_back
    if frame is None:
        return
    where = "validation" if label == "validation" else "step"
    key = {"site": loop_line(session, frame), "package": package, "where": where, "read": session.maps_read}
    session.row("lines", **key)["seconds"] += seconds


def watch_files(session: Session) -> None:
    """Count how often the training's own thread opens each file between its steps, by the line of the loop."""

    def on_event(event: str, args: Any) -> None:
        if event != "open" or not session.on or session.index == 0 or not session.live():
            return
        path = args[0]
        if not isinstance(path, str) or path.startswith(("/proc", "/sys", "/dev")):
            return
        frame = user_frame(sys._getframe(1))
        if frame is None or session.line.stack[-1] in ("wait", "checkpoint") or session.validating is not None:
            return
        site = loop_line(session, frame)
        if set("wax+") & set(str(args[1] or "")):
            session.called("written", site)
        else:
            files = session.opened.setdefault(site, {})
            files[path] = files.get(path, 0) + 1

    sys.addaudithook(on_event)


def loop_line(session: Session, frame: Any) -> str:
    """The line of the function that runs the loop, under which `frame` is; else that of the outermost user code below a
    library, such as a Lightning module's method."""
    outermost = frame
    while frame is not None and is_user(frame.f_code.co_filename):
        outermost = frame
        if frame.f_code is session.loop_code:
            break
        frame = frame.f_back
    return site_of(outermost)


def keep_loop(session: Session) -> None:
    """Keep, at the end of a step, the code that made it."""
    frame = user_frame(sys._getframe(1))
    session.loop_code = frame.f_code if frame is not None else None
