"""`--try`: run the script with and without a cure of one switch, interleaved: its gain, and whether losses agree."""

from __future__ import annotations

import math
import statistics
import time
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
ROUNDING, LOW_PRECISION, REPEATABLE = 1e-5, 2e-2, 1e-3
"""Largest relative difference of losses: from another order of sums; from bfloat16; and between runs of the unchanged
script, above which losses can't be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The script with one cure against the unchanged script."""

    switch: str
    """Name of the switch, as in `Finding.switch`."""
    outcome: Outcome
    gain: float | None = None
    """Median step without over median step with it; None if one of the runs failed, or made too few steps."""
    low: float | None = None
    """Slowest run with it against the fastest without: the worst gain."""
    high: float | None = None
    base_s: tuple[float, ...] = ()
    """Seconds of a step, one for each run without."""
    cured_s: tuple[float, ...] = ()
    difference: float | None = None
    """Largest relative difference of the first losses, from those without."""
    agreement: str = ""
    """Agreement in words: exact, within rounding, ..."""
    why: str = ""
    """Why the outcome is unclear, or how it failed."""


def try_cures(
    command: Sequence[str],
    findings: Sequence[Finding],
    base_run: ScriptRun,
    *,
    steps: int,
    seconds: float,
    echo: Callable[[str], object],
    budget_s: float = 900.0,
    run: Callable[..., ScriptRun] = run_script,
    meter: LoadMeter | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tried]:
    """Try the findings' cures that are one switch each.

    base_run: the watched run, used for its losses and not for its times. seconds: bound on one run, as in `run_script`.
    budget_s: no further cure is started after it. A cure counts as faster only if each of its runs was faster than each
    without.
    """
    meter, start = meter or LoadMeter(), clock()
    tried: list[Tried] = []
    for switch in dict.fromkeys(finding.switch for finding in findings if finding.switch):
        if clock() - start > budget_s:
            echo(f"no time left to try {switch}")
            continue
        echo(f"trying {switch}: {RUNS} runs with it and {RUNS} without, interleaved")

        def run_with(*switches: str) -> ScriptRun:
            return run(command, steps=steps, seconds=seconds, switches=switches, experiments=False, quiet=True)

        tried.append(_in_turns(switch, base_run, run_with, meter))
    return tried


def _in_turns(switch: str, base_run: ScriptRun, run: Callable[..., ScriptRun], meter: LoadMeter) -> Tried:
    base_s, cured_s = list[float](), list[float]()
    losses = {False: [_losses(base_run)], True: list[tuple[float, ...]]()}
    meter.others()
    for number in range(RUNS):
        # The order alternates, so that neither arm always runs on a warm machine.
        for cured in (False, True) if number % 2 == 0 else (True, False):
            script_run = run(switch) if cured else run()
            step_s = _step_s(script_run)
            if step_s is None:
                outcome, why = _without_times(script_run)
                return Tried(switch=switch, outcome=outcome, why=f"{'with' if cured else 'without'} it {why}")
            (cured_s if cured else base_s).append(step_s)
            losses[cured].append(_losses(script_run))
    gain, low, high, outcome, why = judge_times(base_s, cured_s, meter.others())
    name = switch.partition("=")[0]
    tolerance = LOW_PRECISION if name == "autocast" else ROUNDING
    difference, agreement = compare_losses(losses[False], losses[True], tolerance)
    return Tried(
        switch=switch,
        outcome=outcome,
        gain=gain,
        low=low,
        high=high,
        base_s=tuple(base_s),
        cured_s=tuple(cured_s),
        difference=difference,
        agreement=agreement,
        why=why,
    )


def judge_times(
    base: Sequence[float], cured: Sequence[float], others: float
) -> tuple[float, float, float, Outcome, str]:
    """Gain of the medians, worst and best gain, the outcome, and why it is unclear."""
    gain = statistics.median(base) / statistics.median(cured)
    low, high = min(base) / max(cured), max(base) / min(cured)
    if others > BUSY:
        return gain, low, high, "unclear", f"other programs used {others:.1f} cores meanwhile"
    if low > 1 + LEAST:
        return gain, low, high, "faster", ""
    if high < 1 - LEAST:
        return gain, low, high, "slower", ""
    if low >= 1 - 2 * LEAST and high <= 1 + 2 * LEAST:
        return gain, low, high, "same", ""
    return gain, low, high, "unclear", "the runs with and without it overlap"


def compare_losses(
    base: Sequence[tuple[float, ...]], cured: Sequence[tuple[float, ...]], tolerance: float = ROUNDING
) -> tuple[float | None, str]:
    """Largest relative difference of the first losses, and its meaning given how the unchanged script's runs differ."""
    base_difference = max((loss_difference(base[0], other) for other in base[1:]), default=0.0)
    if not base[0] or not all(cured):
        return None, "not comparable: no losses were seen"
    worst = max(loss_difference(base[0], other) for other in cured)
    if base_difference > REPEATABLE:
        return worst, f"not comparable: the script's own runs differ by {base_difference:.1g}"
    if worst == 0:
        return worst, "exact"
    if worst <= max(ROUNDING, 2 * base_difference):
        return worst, f"within rounding ({worst:.1g})"
    if worst <= tolerance:
        return worst, f"within bfloat16's precision ({worst:.1g})"
    return worst, f"differs ({worst:.1g})"


def loss_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest relative difference of two runs' first losses; those that only one of them has don't count."""
    return max((_relative_difference(a, b) for a, b in list(zip(one, other, strict=False))[:LOSSES]), default=0.0)


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
    record = _training_record(run)
    steps = record.steps if record is not None else 0
    return "unclear", f"only {steps} steps were made in {run.seconds:.0f} s, too few; give it more --seconds"


def _losses(run: ScriptRun) -> tuple[float, ...]:
    record = _training_record(run)
    return record.losses[:LOSSES] if record is not None else ()
