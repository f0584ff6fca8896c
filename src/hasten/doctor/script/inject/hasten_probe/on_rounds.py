"""Brings rounds about: a pass over the training data that is longer than what is watched ends early, twice at most.

What lies between two passes (validations, checkpoints, workers that start again) is seen so. It counts for the share of
the pass that was made: after 10 batches of 200, for a twentieth. A long validation of such a round ends early as well,
and counts for all of its batches.
"""

from __future__ import annotations

import dis
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from . import after_import
from .session import Session, rank
from .sites import caller

_VALIDATION = 0.15
"""Share of the seconds of the watching from which a validation ends early."""
_LEAST_STEPS = 5
"""Steps of a pass, at least, before it ends early."""
_LENGTHS = ("limit_train_batches", "val_check_interval", "overfit_batches", "fast_dev_run")
"""Arguments of Lightning's trainer that go with a number of batches."""
_MOST = 0.9
"""Share of a pass from which it goes on to its end."""


def install(session: Session) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):

        def limit(name: str = name) -> None:
            session.around(sys.modules[name].Trainer, "__init__", _make_trainer)

        after_import(name, limit)


def _make_trainer(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    """Lightning counts batches itself: its passes are limited from the beginning, unless the script says how long."""
    if session.index == 0 and not any(kwargs.get(name) for name in _LENGTHS):
        kwargs["limit_train_batches"] = max(_LEAST_STEPS, session.steps_wanted // 2)
        session.limited = True
    original(self, *args, **kwargs)


def begin_pass(session: Session, facts: dict[str, Any]) -> None:
    """A loader is iterated over."""
    length, passes = facts["settings"]["length"], facts["passes"]
    last = passes[-1] if passes else None
    if session.limited and length and last and last["step"] < session.index and last["batches"] < _MOST * length:
        session.round_share = last["batches"] / length
        session.rounds += 1
    passes.append({"step": session.index, "at": time.perf_counter(), "batches": 0, "start_s": 0.0})


def ends_early(session: Session, facts: dict[str, Any]) -> bool:
    """Whether the loader's pass ends before its next batch: only in a `for` loop, which goes on behind it.

    An engine of ignite, which would ask for a new pass, is told instead to end its epoch when it has the batch.
    """
    length, this = facts["settings"]["length"], facts["passes"][-1]
    if not length or not this["batches"]:
        return False
    share = this["batches"] / length
    is_training = session.loader_facts.get(session.last_loader or -1) is facts
    is_training = is_training and session.index - this["step"] >= _LEAST_STEPS
    if session.validating is not None and not is_training:
        return share < 1 and _validation_ends(session, this["at"], share)
    begun = {each["step"] for each in facts["passes"]}  # A validation on the training cases begins with no other step.
    if share > _MOST or session.index < session.round_from or len(begun) > 2:
        return False
    engine = _engine(session)
    if not is_training or not (engine or _in_for_loop()):
        return False
    session.round_from = session.index + session.steps_wanted // 4
    session.round_share = share
    if _is_accelerate(caller()):
        session.round_late = share  # It has one batch more, whose step comes before the end.
    session.rounds += 1
    return _end_epoch(engine)


def _engine(session: Session) -> Any:
    """The engine of ignite that asks for the next batch; None where something else does."""
    asks = str(caller().f_globals.get("__name__", "")).startswith("ignite.engine")
    return session.engines[-1] if asks and session.engines else None


def _end_epoch(engine: Any) -> bool:
    """Whether the loader has to say that there are no more batches: not to an engine, which is told itself."""
    if engine is not None:
        engine.terminate_epoch()
    return engine is None


def _validation_ends(session: Session, since: float, share: float) -> bool:
    """Whether a validation ends early; adds the seconds that the rest of it would take."""
    spent = time.perf_counter() - since
    # The ranks of one training must not part here.
    engine = _engine(session)
    if session.round_share == 1 or spent < _VALIDATION * session.seconds or rank()[1] > 1:
        return False
    if not (engine or _in_for_loop()):
        return False
    rest = spent * (1 / share - 1)
    session.line.parts["validation"] = session.line.parts.get("validation", 0.0) + rest
    session.added_s += rest
    assert session.validating is not None
    session.validating["at"] -= rest
    return _end_epoch(engine)


def safe_path(session: Session, file: Any) -> Any:
    """Where `torch.save` writes, once a pass has ended early: beside a file that the script did not write itself."""
    if not isinstance(file, (str, os.PathLike)):
        return file
    path = os.path.abspath(file)  # noqa: PTH100
    if path in session.written or not os.path.exists(path):  # noqa: PTH110
        session.written.add(path)
        return file
    return f"{path}.hasten-doctor" if session.rounds else file


def weighted_steps(session: Session) -> list[dict[str, Any]]:
    """Steps with what a round adds to one counted for its share: of each part, what lies above the others' median."""
    steps = session.steps
    others = [step for step in steps[1:] if step["round"] == 1]
    if len(others) + 1 >= len(steps) or not others:
        return steps
    names = {name for step in others for name in step["parts"]}
    usual = {name: statistics.median(step["parts"].get(name, 0.0) for step in others) for name in names}
    return [_weighted(step, usual) for step in steps]


def _weighted(step: dict[str, Any], usual: dict[str, float]) -> dict[str, Any]:
    share = step["round"]
    more = {name: max(0.0, seconds - usual.get(name, 0.0)) for name, seconds in step["parts"].items()}
    parts = {name: seconds - (1 - share) * more[name] for name, seconds in step["parts"].items()}
    seconds = step["seconds"] - (1 - share) * sum(more.values())
    return step | {"parts": parts, "seconds": seconds, "cpu": step["cpu"] * seconds / max(step["seconds"], 1e-9)}


def _in_for_loop() -> bool:
    """Whether a `for` statement asks for the next batch, maybe by `enumerate`, `zip`, tqdm or accelerate's loader."""
    frame = caller()
    if _is_accelerate(frame):
        frame = frame.f_back
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "FOR_ITER"


def _is_accelerate(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__") == "accelerate.data_loader")
