"""Optimizers: each step of the first one ends a training step, and the last step wanted ends the watching.

So does the script's end, or time. The record is then written as JSON, and once more after the experiments.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import after_import, on_data, on_lines
from .exp_time import Others, children_s
from .on_modules import count_hooks, find_roots, hooks_off, keep_called, zero_grad
from .on_rounds import weighted_steps
from .session import Session, is_compiling, rank
from .sites import nearest

_COPIED = (
    *("assume_cuda", "shapes", "devices", "autocast", "subclass"),
    *("load", "modes", "mode_sites", "saves", "copies", "validations"),
)
"""What the record has from the session as it is."""


def install(session: Session) -> None:
    session.around(torch.optim.Optimizer, "__init__", _make)
    session.around(torch.optim.Optimizer, "zero_grad", _zero_grad)
    after_import(
        "ignite.engine.engine", lambda: session.around(sys.modules["ignite.engine.engine"].Engine, "run", _run_engine)
    )
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _before(session))
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: _after(session, optimizer))


def _make(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if not any(existing is self for existing, _ in session.optimizers):
        session.optimizers.append((self, nearest()))


def _zero_grad(session: Session, original: Callable[..., Any], self: Any, set_to_none: bool = True) -> Any:
    _note_waste(session, self)
    return zero_grad(session, original, self, set_to_none)


def _before(session: Session) -> None:
    if is_compiling():
        return
    again(session)
    if session.live():
        session.sync()
        session.line.push("optimizer")


def _after(session: Session, optimizer: Any) -> None:
    if is_compiling() or not session.live():
        return
    session.sync()
    session.line.pop()
    session.gradients[id(optimizer)] = _gradients(optimizer)
    if session.ender is None:
        session.ender = id(optimizer)
    if session.ender == id(optimizer):
        _end_step(session)


def _gradients(optimizer: Any) -> tuple[Any, ...]:
    """Versions of the first weights' gradients, to detect a change."""
    some = [p for group in optimizer.param_groups for p in group["params"]][:4]
    return tuple(None if p.grad is None else (id(p.grad), p.grad._version) for p in some)


def _note_waste(session: Session, optimizer: Any) -> None:
    """Gradients that came after the optimizer's last step, and are thrown away before the next."""
    at_step, now = session.gradients.get(id(optimizer)), _gradients(optimizer)
    if at_step is not None and now != at_step and any(now):
        session.called("unused_gradients", nearest())
    session.gradients.pop(id(optimizer), None)


def _load(session: Session) -> None:
    """Cores that this process's own children, such as workers, and other programs took since the first step."""
    now = time.perf_counter()
    if "load_at" not in session.uses:
        session.uses["load_at"] = now, children_s(), Others()
        return
    start, children, others = session.uses["load_at"]
    workers = max(0.0, children_s() - children) / max(now - start, 1e-9)
    # What has not ended yet of the children counts as others there.
    session.load = {"workers": workers, "others": max(0.0, (others.cores() or 0.0) - workers)}


def _end_step(session: Session) -> None:
    now = time.perf_counter()
    parts, cpu = session.line.cut(), time.thread_time()
    step = {"seconds": now - session.step_at + session.added_s, "parts": parts, "cpu": cpu - session.cpu_at}
    session.steps.append({**step, "synced": session.syncing, "round": session.round_share, **session.cpu})
    session.losses.append(session.loss)
    session.loss, session.taken = None, False
    session.cpu, session.added_s = {}, 0.0
    session.round_share, session.round_late = session.round_late, 1.0
    session.index += 1
    session.sent_in_step.clear()
    session.inputs = [session.inputs[-1], {}]
    facts = session.loader_facts.get(session.last_loader or -1)
    if facts is not None:
        facts["training"] += 1
        loader = facts["ref"]()
        if facts["training"] == 1 and loader is not None and len(session.loaders) < 4:
            session.loaders.append((loader, facts["site"]))
    if session.index == 1:
        # Whatever came before the first step, such as writing data, doesn't count.
        session.deadline = time.time() + session.seconds
        on_lines.keep_loop(session)
        on_lines.watch(session)
        watch(session)
        on_lines.watch_files(session)
        _load(session)
    if session.index <= 2:
        # Whatever is odd about somebody's modules must not end their training.
        with contextlib.suppress(Exception):
            (find_roots if session.index == 1 else keep_called)(session)
            session.uses["hooks"] = count_hooks(session)
    if session.index >= 3:
        with contextlib.suppress(Exception):
            _load(session)
    with contextlib.suppress(Exception):
        from . import on_flow  # A torch without what this imports is watched all the same.

        on_flow.watch(session)
    if session.index >= session.steps_wanted:
        finish(session, "steps")
    elif time.time() > session.deadline:
        finish(session, "seconds")
    # On CUDA the parts of every fourth step are device times, and the steps between show the real pace.
    session.syncing = session.index % 4 == 3 and "cuda" in session.devices
    session.line.at = session.step_at = time.perf_counter()
    session.cpu_at = time.thread_time()


# The end


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
    for engine in session.engines:
        # It would report an exception that passes through it as an error.
        engine.should_terminate = "skip_completed"
    again(session)


def _run_engine(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an engine of ignite, and end the script behind the outermost one that was stopped.

    One within another is a validation, also where it sets the mode of the network for each batch.
    """
    session.engines.append(self)
    if len(session.engines) > 1 and session.live():
        session.enter_validation(nearest())
    try:
        return original(self, *args, **kwargs)
    finally:
        session.engines.pop()
        session.leave_validation()
        again(session)


def again(session: Session) -> None:
    """End a script that caught the stop exception and went on, or that an engine has come to the end of."""
    ours = session.pid == os.getpid() and threading.get_ident() == session.thread
    if session.finished and ours and not session.engines:
        raise (Bounded() if multiprocessing.parent_process() is None else BoundedChild(0))


def _close(session: Session, why: str, experiments: bool) -> None:
    # While the interpreter runs: a thread that frees a tensor of the script during its shutdown aborts it.
    session.timer.cancel()
    for thread in (session.timer, session.sampler):
        thread.join()
    write(session, why)
    if not experiments or session.index < 5 or not session.wanted["experiments"] or rank()[0] != 0:
        return
    write(session, why, experiments=_experiments(session))


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
    half.write_text(json.dumps(record, default=str), encoding="utf-8")
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
        "loaders": [_loader(facts) for facts in list(session.all_loaders)],
        "roots": [{"site": site} for _, site in list(session.roots)],
        "convolutions": bool(session.conv_sites),
        "hooks_added": count_hooks(session) - session.uses.get("hooks", 0),
        **{name: list(rows.values()) for name, rows in session.tables.items()},
        "opened": [
            {"site": site, "files": len(files), "opens": sum(files.values())}
            for site, files in list(session.opened.items())
        ],
        "steps": weighted_steps(session),
        "losses": [None if each is None else float(each) for each in list(session.losses)],
        "cores": session.cores,
        "spin": {name: os.environ[name] for name in session.wanted["spin"] if os.environ.get(name)},
        **{name: copy.copy(getattr(session, name)) for name in _COPIED},
    }


def _loader(facts: dict[str, Any]) -> dict[str, Any]:
    loader = facts["ref"]()
    entries = {name: value for name, value in facts.items() if name not in ("ref", "settings")}
    return entries | (on_data.settings(loader) if loader is not None else facts.get("settings", {}))
