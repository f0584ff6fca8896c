"""The end of the watching (the limit of steps or seconds, the script's end, or time is up), and the record, as JSON."""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import math
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from . import on_data
from .on_modules import hooks_off
from .session import Session

_COPIED = (
    *("assume_cuda", "steps", "shapes", "devices", "autocast", "subclass"),
    *("load", "modes", "mode_sites", "saves", "copies", "validations"),
)
"""What the record has from the session as it is."""

_SPIN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY")
"""Variables that say how OpenMP's threads wait."""


class Bounded(BaseException):
    """Ends the script at the limit. No Exception, so that `except Exception` lets it pass."""


class BoundedChild(SystemExit):
    """`Bounded` for a process of multiprocessing, which would print the traceback of any other exception."""


def watch(session: Session) -> None:
    """Write the record, from the first step on, however the process ends, except by os._exit or a signal."""
    Path(session.out, f"trains-{os.getpid()}").touch()
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _at_exit, args=(session,), exitpriority=1000)
    else:
        previous = sys.excepthook

        def failing(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            session.failed = True
            previous(kind, error, trace)

        sys.excepthook = failing
        atexit.register(_at_exit, session)
    session.timer = threading.Timer(max(0.1, session.deadline - time.time()), _time_is_up, args=(session,))
    session.timer.daemon = True
    session.timer.start()


def _at_exit(session: Session) -> None:
    if session.on and session.pid == os.getpid():
        session.on = False
        _close(session, "failed" if session.failed else "exit", experiments=not session.failed)


def _time_is_up(session: Session) -> None:
    """A step that lasts beyond the bound can't be ended from here: what is known is written, before a signal comes."""
    with contextlib.suppress(Exception):
        if session.on and session.pid == os.getpid():
            write(session, "running")


def finish(session: Session, why: str) -> None:
    """Write the record, experiments done, and raise to end the script."""
    session.on = False
    session.finished = True
    _close(session, why, experiments=True)
    Path(session.out, f"bounded-{os.getpid()}").touch()
    previous = sys.excepthook

    def ending(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, Bounded):
            previous(kind, error, trace)
            return
        # An exit code of 1 would make launchers of several ranks kill the others.
        atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    sys.excepthook = ending
    again(session)


def again(session: Session) -> None:
    """End a script that caught the stop exception and went on."""
    if session.finished and session.pid == os.getpid() and threading.get_ident() == session.thread:
        raise (Bounded() if multiprocessing.parent_process() is None else BoundedChild(0))


def _close(session: Session, why: str, experiments: bool) -> None:
    _end_threads(session)
    session.step_seconds = [step["seconds"] for step in session.steps[1:]]
    write(session, why)
    if not experiments or session.index < 5 or not session.wanted["experiments"] or rank()[0] != 0:
        return
    write(session, why, experiments=_experiments(session))


def _end_threads(session: Session) -> None:
    """End them while the interpreter runs: one that frees a tensor of the script during its shutdown aborts it."""
    session.timer.cancel()
    for thread in (session.timer, session.sampler):
        thread.join()


def _experiments(session: Session) -> dict[str, Any]:
    from . import experiments

    Path(session.out, f"experiments-{os.getpid()}").touch()
    try:
        with hooks_off(session):
            # What the watching leaves of its time is the experiments' too.
            session.budget_s += max(0.0, session.deadline - time.time())
            return experiments.run(session)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        Path(session.out, f"experiments-{os.getpid()}").unlink()


# The record


def write(session: Session, ended: str, experiments: dict[str, Any] | None = None) -> None:
    """Write `record-PID.json` into the session's folder, in one piece; never raise because of one odd value."""
    record = _gather(session, ended) | ({"experiments": experiments} if experiments else {})
    path = Path(session.out, f"record-{os.getpid()}.json")
    half = path.with_suffix(".half")
    half.write_text(json.dumps(plain(record)), encoding="utf-8")
    half.replace(path)


def _gather(session: Session, ended: str) -> dict[str, Any]:
    own_rank, world = rank()
    return {
        "ended": ended,
        "rank": own_rank,
        "world": world,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "cuda_devices": torch.cuda.device_count(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()),
        "loaders": [_loader(facts) for facts in list(session.loader_facts.values())],
        "roots": [{"site": site} for _, site in list(session.roots)],
        "convolutions": session.has_convolutions,
        **{name: list(getattr(session, name).values()) for name in ("reads", "calls", "lines", "sent")},
        "torch_calls": [{"site": s, "function": f, "count": n} for (s, f), n in list(session.torch_calls.items())],
        "opened": [
            {"site": site, "files": len(files), "opens": sum(files.values())}
            for site, files in list(session.opened.items())
        ],
        "nnunet": session.uses.get("nnunet", {}),
        "cores": session.cores,
        "spin": {name: os.environ[name] for name in _SPIN if os.environ.get(name)},
        **{name: copy.copy(getattr(session, name)) for name in _COPIED},
    }


def rank() -> tuple[int, int]:
    """Rank and number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1)


def _loader(facts: dict[str, Any]) -> dict[str, Any]:
    loader = facts["ref"]()
    entries = {name: value for name, value in facts.items() if name not in ("ref", "fresh", "settings")}
    return entries | (on_data.settings(loader) if loader is not None else facts.get("settings", {}))


def plain(value: Any) -> Any:
    """`value` in what JSON knows: whatever else it holds as its words, and numbers that aren't finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
