"""Measuring the claims within a time, and what was found as a table for the terminal and JSON."""

from __future__ import annotations

import importlib.util
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from rich.table import Table

from benchmarks.guide.claim import Budget, Guidance, Outcome, Result, unmeasured
from hasten.observe.cores import usable_cores

_ROUNDS_S = 4.0
"""Seconds of rounds that a claim gets where there is time for all of them."""
_STYLE = {"holds": "green", "does not hold": "red", "can't tell": "yellow", "not measured": "dim"}


def chosen(claims: Sequence[Guidance], only: Sequence[str]) -> tuple[Guidance, ...]:
    """The claims of these names, in the guide's order; all of them for none. Raises ValueError for another name."""
    names = [guidance.name for guidance in claims]
    for name in only:
        if name not in names:
            raise ValueError(f"--only {name}: the guide has no such claim; there are {', '.join(names)}")
    return tuple(guidance for guidance in claims if not only or guidance.name in only)


def run_guide(
    claims: Sequence[Guidance],
    *,
    seconds: float,
    tell: Callable[[Guidance], object] = lambda guidance: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Result]:
    """Measure the claims one after another.

    seconds: for all of them together; each gets a share, by what it needs before its first round, and what one leaves
    goes to those after it. tell: called before each that is begun.
    """
    end, results = clock() + seconds, []
    needed = {guidance.name: guidance.setup_s + _ROUNDS_S for guidance in claims if not missing(guidance.needs)}
    for guidance in claims:
        begun, why = clock(), missing(guidance.needs)
        outcome = unmeasured(why)
        if not why:
            share = (end - begun) * needed[guidance.name] / sum(needed.values())
            del needed[guidance.name]
            tell(guidance)
            outcome = _measured(guidance, share)
        results.append(Result(guidance=guidance, outcome=outcome, seconds=clock() - begun))
    return results


def _measured(guidance: Guidance, seconds: float) -> Outcome:
    try:
        with settings_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Such as that anomaly detection is slow, which is what is measured.
            device = "cuda" if torch.cuda.is_available() else "cpu"
            return guidance.run(Budget(seconds=seconds, device=device))
    except TimeoutError:
        return unmeasured(f"out of time: {seconds:.0f} s were too few")
    except Exception as error:  # What one claim's library can't do on this machine must not cost the other claims.
        return unmeasured(f"failed: {type(error).__name__}: {str(error).strip() or 'no message'}")


def missing(needs: str) -> str:
    """Why a claim can't be measured here, such as `needs a CUDA device`; empty if it can. needs: see `Guidance`."""
    have = {
        "": True,
        "a CUDA device": torch.cuda.is_available(),
        "two CUDA devices": torch.cuda.device_count() >= 2,
        "two processor cores": usable_cores() >= 2,
        "the package lmdb": importlib.util.find_spec("lmdb") is not None,
    }
    return "" if have[needs] else f"needs {needs}"


@contextmanager
def settings_kept() -> Iterator[None]:
    """Threads, torch's global flags and the random states are afterwards what they were, also after an error."""
    cudnn = torch.backends.cudnn
    kept: list[tuple[Any, Any]] = [
        (torch.set_num_threads, torch.get_num_threads()),
        (torch.set_grad_enabled, torch.is_grad_enabled()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled()),
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002
        (random.setstate, random.getstate()),
        (lambda value: setattr(cudnn, "benchmark", value), cudnn.benchmark),
    ]
    with ExitStack() as later:
        for put_back, value in kept:
            later.callback(put_back, value)
        yield


def summary(results: Sequence[Result]) -> str:
    """One line: how many hold."""
    counts = {verdict: sum(result.outcome.verdict == verdict for result in results) for verdict in _STYLE}
    busy = any(result.outcome.comparison is not None and result.outcome.comparison.busy for result in results)
    text = ", ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    return text + ("; other programs were running, so measure again on a quiet machine" if busy else "")


def terminal_table(results: Sequence[Result]) -> Table:
    """A row for each claim."""
    table = Table(expand=True, show_lines=True)
    for name, ratio in {"claim": 5, "published": 3, "measured here": 5, "verdict": 2}.items():
        table.add_column(name, ratio=ratio, overflow="fold")
    for result in results:
        guidance, outcome = result.guidance, result.outcome
        table.add_row(
            f"[bold]{guidance.name}[/bold]\n{guidance.claim}",
            guidance.published or "–",
            "\n".join(filter(None, [outcome.measured, outcome.why, outcome.note])),
            f"[{_STYLE[outcome.verdict]}]{outcome.verdict}[/]",
        )
    return table


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Everything, with the raw seconds of each arm in the order of the rounds."""
    facts = ("name", "claim", "source", "published", "needs")
    return [
        {name: getattr(result.guidance, name) for name in facts}
        | asdict(result.outcome)
        | {"took_s": round(result.seconds, 2)}
        for result in results
    ]
