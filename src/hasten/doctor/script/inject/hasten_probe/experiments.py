"""The experiments at the end of the watched steps, each within its share of the time, none able to fail the script."""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import exp_data, exp_net
from .exp_time import Others, random_state_kept
from .on_rounds import weighted_steps
from .session import rank

SHARES = {
    "workers": 0.30,
    "items": 0.15,
    "doubled_batch": 0.12,
    "autocast": 0.14,
    "channels_last": 0.10,
    "conv_bias": 0.02,
}
"""Shares of the time for all experiments; unused time goes to the later ones."""
TOUCHES = {"workers": ("wait", "sample", "forward", "backward"), "items": ("wait", "sample")}
"""Parts of a step that an experiment's cure could shorten; by default forward, backward, sample and overhead."""
LIKELY = {"workers": 0.8, "items": 0.8, "doubled_batch": 0.4, "autocast": 0.3}
"""Share of these parts that a working cure saves; by default a tenth."""
ALWAYS = ("items", "conv_bias")
"""Experiments whose observation is worth reporting even without a gain or time to measure it."""
TIMED = ("doubled_batch", "autocast", "channels_last")
"""Experiments that compare two ways of a step, whose time is the data's where a step is slow."""
_COMPUTE = ("forward", "backward")
_CALLS_AT_LEAST, _CALLS_WANTED = 8, 12
"""Steps of such a comparison until it can be given up as one without a gain, and for a result."""
NOTHING = 0.02
"""Largest possible gain, as a share of a step, below which an experiment isn't worth its time."""


def run(session: Any) -> dict[str, Any]:
    """Whatever the experiments measured, by name; {"skipped": why} or {"error": ...} where there is nothing.

    The objects of the script, its gradients, its random states and torch's settings are as before. Of several ranks one
    tries the data alone, when the others have ended.
    """
    begin, others = time.perf_counter(), Others()
    results: dict[str, Any] = {}
    steps = weighted_steps(session)[1:]
    with contextlib.ExitStack() as stack:
        stack.enter_context(random_state_kept())
        # A finished session ends the script at its next optimizer step, which the experiments must be able to call.
        stack.callback(setattr, session, "finished", session.finished)
        session.finished = False
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(torch.enable_grad())
        calls, reason = _calls(session)
        expected = _expected(steps, calls)
        calls = dict(sorted(calls.items(), key=lambda pair: -expected[pair[0]]))
        for name in calls:
            if expected[name] < NOTHING * LIKELY.get(name, 0.1) and name not in ALWAYS:
                results[name] = {"skipped": "the parts that it could shorten take next to nothing"}
        calls = {name: call for name, call in calls.items() if name not in results}
        total = sum(SHARES[name] for name in calls)
        compute_s = statistics.fmean(sum(step["parts"].get(part, 0.0) for part in _COMPUTE) for step in steps)
        for name in [name for name in TIMED if name in calls]:
            if 0 < session.budget_s * SHARES[name] < _CALLS_AT_LEAST * compute_s * total:
                why = f"a step computes for {compute_s:.1f} s"
                results[name] = {"skipped": why, "needs_s": _CALLS_WANTED * compute_s}
                del calls[name]
        total = sum(SHARES[name] for name in calls)
        for name, call in calls.items():
            remaining = session.budget_s - (time.perf_counter() - begin)
            share = remaining * SHARES[name] / max(total, 1e-9)
            total -= SHARES[name]
            if remaining > 0.2 or name in ALWAYS:
                results[name] = _tried(call, max(0.0, share))
            else:
                step_s = statistics.fmean(step["seconds"] for step in steps)
                results[name] = {"skipped": "no time left", "needs_s": max(2.0, _CALLS_WANTED * step_s)}
        for name in SHARES:
            results.setdefault(name, {"skipped": reason})
    if reason:
        results["without_network"] = reason
    results["others"] = others.cores()
    results["took_s"] = time.perf_counter() - begin
    return results


def _expected(steps: list[dict[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Share of a step that each experiment's cure would save if it worked; the most promising run first."""
    whole = max(sum(sum(step["parts"].values()) for step in steps), 1e-9)

    def share(name: str) -> float:
        touched = TOUCHES.get(name, ("forward", "backward", "sample", "overhead"))
        return sum(step["parts"].get(part, 0.0) for step in steps for part in touched) / whole

    return {name: LIKELY.get(name, 0.1) * share(name) for name in names}


def _tried(call: Callable[[float], dict[str, Any]], seconds: float) -> dict[str, Any]:
    try:
        result = call(seconds)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    if "error" in result:
        # Also after an out-of-memory error: this frees the copies in the frames of the traceback.
        gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return result


def _calls(session: Any) -> tuple[dict[str, Callable[[float], dict[str, Any]]], str]:
    """The experiments to run, and why the others aren't."""
    net, reason = next(iter(exp_net.nets(session)), None), ""
    if rank()[1] > 1:
        reason = "several ranks, of which each has a part of the network's work"
    elif net is None:
        reason = "no network that trains was called with a batch"
    elif exp_net.compiled(net.module):
        reason = "the network is compiled: each arm would compile again"
    calls: dict[str, Callable[[float], dict[str, Any]]] = {
        "workers": lambda seconds: exp_data.workers(session, seconds, None if reason else _cycle(net)),
        "items": lambda seconds: exp_data.items(session, seconds),
    }
    if not reason:
        for name in ("doubled_batch", "autocast", "channels_last", "conv_bias"):
            calls[name] = functools.partial(_on_net, getattr(exp_net, name), net, session)
    return calls, reason


def _cycle(net: Any) -> Callable[[], object] | None:
    """Forward and backward, beside which workers make batches; None if the network can't be copied."""
    try:
        cycle, sync = net.cycle(net.copied()), net.sync
    except Exception:
        return None  # The other experiments fail on it too, and say why.

    def synced() -> None:
        cycle()
        if sync is not None:
            sync()

    return synced


def _on_net(experiment: Callable[..., dict[str, Any]], net: Any, session: Any, seconds: float) -> dict[str, Any]:
    known = {"site": net.site, "device": net.device.type, "own_clock": net.clock is not None}
    return {**experiment(net, session, seconds), **known}
