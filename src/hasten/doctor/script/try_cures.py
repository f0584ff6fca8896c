"""`--try`: run the script with and without a cure of one switch, interleaved: its gain, and how far losses differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hasten.doctor.finding import Finding
from hasten.doctor.script.launch import ScriptRun, run_script
from hasten.doctor.script.records import ProcessRecord
from hasten.observe.cpu_load import BUSY, LoadMeter

Outcome = Literal["faster", "slower", "same", "unclear", "failed"]

RUNS = 3
"""Runs with and without a cure."""
LEAST = 0.03
"""Share of a step below which a difference is ignored."""
LOSSES = 10
"""Losses of the first steps that are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The script with one cure against the unchanged script."""

    switch: str
    """Name of the switch, as in `Finding.switch`."""
    outcome: Outcome
    why: str = ""
    """Why the outcome is unclear, or how it failed."""
    gain: float | None = None
    """Median step without over median step with it; None if one of the runs failed, or made too few steps."""
    low: float | None = None
    """Slowest run with it against the fastest without: the worst gain."""
    high: float | None = None
    base_s: tuple[float, ...] = ()
    """Seconds of a step, one for each run without."""
    cured_s: tuple[float, ...] = ()
    difference: float | None = None
    """Largest relative difference of the first losses from the first run's; None where no losses were seen."""
    own_difference: float | None = None
    """The same of the runs without it: what repeating the script changes."""


def try_cures(
    command: Sequence[str],
    findings: Sequence[Finding],
    base_run: ScriptRun,
    *,
    steps: int,
    seconds: float,
    echo: Callable[[str], object],
    run: Callable[..., ScriptRun] = run_script,
    meter: LoadMeter | None = None,
) -> list[Tried]:
    """Try the findings' cures that are one switch each.

    base_run: the watched run, used for its losses and not for its times. seconds: bound on one run, as in `run_script`.
    A cure counts as faster only if each of its runs was faster than each without.
    """
    meter = meter or LoadMeter()
    tried: list[Tried] = []
    for switch in dict.fromkeys(finding.switch for finding in findings if finding.switch):
        echo(f"trying {switch}: {RUNS} runs with it and {RUNS} without, interleaved")

        def run_with(*switches: str) -> ScriptRun:
            return run(command, steps=steps, seconds=seconds, switches=switches, experiments=False, quiet=True)

        tried.append(_in_turns(switch, base_run, run_with, meter))
    return tried


def _in_turns(switch: str, base_run: ScriptRun, run: Callable[..., ScriptRun], meter: LoadMeter) -> Tried:
    times: dict[bool, list[float]] = {False: [], True: []}
    losses: dict[bool, list[tuple[float, ...]]] = {False: [_losses(base_run)], True: []}
    meter.others()
    for number in range(RUNS):
        # The order alternates, so that neither arm always runs on a warm machine.
        for cured in (False, True) if number % 2 == 0 else (True, False):
            script_run = run(switch) if cured else run()
            step_s = _step_s(script_run)
            if step_s is None:
                outcome, why = _without_times(script_run)
                return Tried(switch=switch, outcome=outcome, why=f"{'with' if cured else 'without'} it {why}")
            times[cured].append(step_s)
            losses[cured].append(_losses(script_run))
    base, cured_s = times[False], times[True]
    outcome, why = judge_times(base, cured_s, meter.others())
    first, *others = losses[False]
    seen = bool(first) and all(losses[True])
    return Tried(
        switch=switch,
        outcome=outcome,
        why=why,
        gain=statistics.median(base) / statistics.median(cured_s),
        low=min(base) / max(cured_s),
        high=max(base) / min(cured_s),
        base_s=tuple(base),
        cured_s=tuple(cured_s),
        difference=max(loss_difference(first, other) for other in losses[True]) if seen else None,
        own_difference=max(loss_difference(first, other) for other in others) if seen else None,
    )


def judge_times(base: Sequence[float], cured: Sequence[float], others: float) -> tuple[Outcome, str]:
    """The outcome by the worst and the best pair of runs, and why it is unclear."""
    low, high = min(base) / max(cured), max(base) / min(cured)
    if others > BUSY:
        return "unclear", f"other programs used {others:.1f} cores meanwhile"
    if low > 1 + LEAST:
        return "faster", ""
    if high < 1 - LEAST:
        return "slower", ""
    if low >= 1 - 2 * LEAST and high <= 1 + 2 * LEAST:
        return "same", ""
    return "unclear", "the runs with and without it overlap"


def loss_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest relative difference of two runs' first losses; those that only one of them has don't count."""
    pairs = list(zip(one, other, strict=False))[:LOSSES]
    return max((_relative_difference(*pair) for pair in pairs), default=0.0)


def _relative_difference(a: float, b: float) -> float:
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(a), abs(b), 1e-12)
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf


def _training_record(run: ScriptRun) -> ProcessRecord | None:
    return next((record for record in run.records if record.step_seconds), None)


def _step_s(run: ScriptRun) -> float | None:
    """Mean step of the first rank without its first fifth; None if the script crashed or made too few steps."""
    record = _training_record(run)
    if run.ended not in ("finished", "bounded", "timeout") or record is None:
        return None
    steady = record.step_seconds[max(1, len(record.step_seconds) // 5) :]
    # A trimmed mean: workers deliver in bursts, which a median would not show.
    steady = tuple(sorted(steady)[len(steady) // 20 : len(steady) - len(steady) // 20])
    return statistics.fmean(steady) if len(steady) >= 3 else None


def _without_times(run: ScriptRun) -> tuple[Outcome, str]:
    """Outcome and reason of a run that gave no times."""
    if run.ended == "crashed":
        last = run.output.strip().splitlines()[-1:]
        return "failed", f"the script ended with exit code {run.exit_code}" + (f": {last[0][:200]}" if last else "")
    return "unclear", f"too few steps were made in {run.seconds:.0f} s; give it more --seconds"


def _losses(run: ScriptRun) -> tuple[float, ...]:
    record = _training_record(run)
    return record.losses[:LOSSES] if record is not None else ()
