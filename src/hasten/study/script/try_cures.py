"""`--try`: run the script with and without each cure, interleaved, and report the gain and whether the losses agree."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.study.finding import Finding
from hasten.study.script.launch import ScriptRun, run_script

Outcome = Literal["faster", "slower", "same", "unclear", "failed"]

LEAST = 0.03
"""Share of a step below which a difference is ignored."""
LOSSES = 10
"""Losses of the first steps that are compared."""
ROUNDING, LOW_PRECISION, REPEATABLE = 1e-5, 2e-2, 1e-3
"""Largest relative difference of losses: from another order of sums; from bfloat16; and between runs of the unchanged
script, above which losses can't be compared."""

CURE_OF = {
    "uncached-items": "cache-items",
    "uncached-transforms": "cache-transforms",
    "no-autocast": "autocast",
    "no-channels-last": "channels-last",
    "unfused-optimizer": "fused-optimizer",
    "unpinned-memory": "pin-memory",
    "cudnn-benchmark-off": "cudnn-benchmark",
    "no-persistent-workers": "persistent-workers",
    "empty-cache": "no-empty-cache",
    "gc-collect": "no-gc-collect",
    "zero-grad-memset": "set-to-none",
    "anomaly-detection": "no-anomaly",
    "profiler-on": "no-profiler",
    "nvtx-on": "no-profiler",
    "gradcheck": "no-gradcheck",
}
"""Cures that can be applied from outside and need no number, by the finding's name."""
_CUT_SHORT = ("finished", "bounded", "timeout", "never trained")
"""Outcomes that aren't an error of the script, which made too few steps to be timed."""
_NUMBERS = {"no-workers": "workers", "few-workers": "workers", "no-prefetch": "prefetch"}
_ARGUMENT = {"workers": "num_workers", "prefetch": "prefetch_factor"}


Run = Callable[[tuple[str, ...]], ScriptRun]
"""A run of the script with these cures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One cure, or all winners together, against the unchanged script."""

    cures: tuple[str, ...]
    """Names of cures, as `hasten_probe.cures.apply` takes them."""
    findings: tuple[str, ...]
    """Names of the findings that asked for them."""
    outcome: Outcome
    gain: float | None
    """Median step without over median step with it; None if one of the runs failed, or made too few steps."""
    low: float | None
    """Slowest run with it against the fastest without: the worst gain."""
    high: float | None
    base_s: tuple[float, ...]
    """Median seconds of a step, one for each run without."""
    cured_s: tuple[float, ...]
    difference: float | None
    """Largest relative difference of the first losses, from those without."""
    agreement: str
    """Agreement in words: exact, within rounding, ..."""
    why: str = ""
    """Why the outcome is unclear, or how it failed."""

    @property
    def won(self) -> bool:
        """Faster, with losses that differ only by rounding or by the chosen precision."""
        return self.outcome == "faster"


def cure_of(finding: Finding) -> str | None:
    """The cure that can be applied from outside, such as "workers=4"; None if only the script's author can cure it."""
    if finding.name in _NUMBERS:
        key = _NUMBERS[finding.name]
        match = re.search(rf"{_ARGUMENT[key]}\s*=\s*(\d+)", finding.cure)
        return f"{key}={match.group(1)}" if match else None
    return CURE_OF.get(finding.name)


def try_cures(
    command: Sequence[str],
    findings: Sequence[Finding],
    base_run: ScriptRun,
    *,
    steps: int,
    seconds: float,
    echo: Callable[[str], object],
    runs: int = 3,
    budget_s: float = 900.0,
    run: Callable[..., ScriptRun] = run_script,
    meter: LoadMeter | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tried]:
    """Try every cure that can be applied from outside, one by one, then all winners together.

    base_run: the watched run, used for its losses and not for its times. seconds: bound on one run, as in `run_script`.
    runs: of each arm, at least 2. budget_s: no further cure is started after it. A cure counts as faster only if each
    of its runs was faster than each without.
    """
    assert runs >= 2
    findings_by_cure: dict[str, list[str]] = {}
    for finding in findings:
        cure = cure_of(finding)
        if cure is not None:
            findings_by_cure.setdefault(cure, []).append(finding.name)
    meter, start = meter or LoadMeter(), clock()

    def run_with(cures: tuple[str, ...]) -> ScriptRun:
        return run(command, steps=steps, seconds=seconds, cures=cures, experiments=False, quiet=True)

    def measure(cures: tuple[str, ...], names: Sequence[str]) -> None:
        tried.append(_in_turns(cures, tuple(names), base_run, runs, run_with, meter, steps))
        echo(f"  {line(tried[-1])}")

    tried: list[Tried] = []
    for cure, names in findings_by_cure.items():
        if clock() - start > budget_s:
            echo(f"no time left to try {cure}")
            continue
        echo(f"trying {cure}: {runs} runs with it and {runs} without, interleaved")
        measure((cure,), names)
    winners = [one for one in tried if one.won]
    if len(winners) > 1 and clock() - start <= budget_s:
        cures = tuple(cure for one in winners for cure in one.cures)
        echo(f"trying all that gained together: {', '.join(cures)}")
        measure(cures, [name for one in winners for name in one.findings])
    return tried


def _in_turns(
    cures: tuple[str, ...],
    names: tuple[str, ...],
    base_run: ScriptRun,
    runs: int,
    run: Run,
    meter: LoadMeter,
    steps: int,
) -> Tried:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    losses = {False: [_losses(base_run)], True: []}
    outcome: Outcome | None = None
    why = ""
    meter.others()
    # The order alternates, so that neither arm always runs on a warm machine.
    for cured in [arm for number in range(runs) for arm in ((False, True) if number % 2 == 0 else (True, False))]:
        script_run = run(cures if cured else ())
        median = _median_step(script_run)
        arm = f"{'with' if cured else 'without'} it the script"
        why = _not_applied(script_run, cures) if cured else ""
        if why or median is None:
            late = not why and script_run.ended in _CUT_SHORT
            outcome = "unclear" if late else "failed"
            why = why or f"{arm} {f'made {_few(script_run)}' if late else _ended(script_run)}"
            break
        seconds[cured].append(median)
        losses[cured].append(_losses(script_run))
    others = meter.others()
    gain = low = high = difference = None
    agreement = ""
    if outcome is None:
        gain, low, high, outcome, why = judge_times(seconds[False], seconds[True], others)
        if outcome in ("same", "unclear") and any(cure.startswith("cache-") for cure in cures):
            epoch = f"a cache gains from its second epoch on, and these runs had {steps} steps"
            why = "; ".join(filter(None, (why, epoch)))
        difference, agreement = compare_losses(losses[False], losses[True], cures)
    return Tried(
        cures=cures, findings=names, outcome=outcome, gain=gain, low=low, high=high, base_s=tuple(seconds[False]),
        cured_s=tuple(seconds[True]), difference=difference, agreement=agreement, why=why,
    )  # fmt: skip


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
    base: Sequence[tuple[float, ...]], cured: Sequence[tuple[float, ...]], cures: Sequence[str] = ()
) -> tuple[float | None, str]:
    """Largest relative difference of the first losses, and its meaning given how the unchanged script's runs differ."""
    base_difference = max((loss_difference(base[0], other) for other in base[1:]), default=0.0)
    differences = [loss_difference(base[0], other) for other in cured]
    if not differences or not base[0] or not all(cured):
        return None, "not comparable: no losses were seen"
    worst = max(differences)
    if base_difference > REPEATABLE:
        return worst, f"not comparable: the script's own runs differ by {base_difference:.1g}"
    if worst == 0:
        return worst, "exact"
    if worst <= max(ROUNDING, 2 * base_difference):
        return worst, f"within rounding ({worst:.1g})"
    if worst <= LOW_PRECISION and any(cure.startswith("autocast") for cure in cures):
        return worst, f"within bfloat16's precision ({worst:.1g})"
    if any(cure.startswith("workers") for cure in cures):
        return worst, f"differs ({worst:.1g}): each worker draws its own random numbers"
    return worst, f"differs ({worst:.1g})"


def loss_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Largest relative difference of two runs' first losses; those that only one of them has don't count."""
    return max((_relative_difference(a, b) for a, b in list(zip(one, other, strict=False))[:LOSSES]), default=0.0)


def _relative_difference(a: float, b: float) -> float:
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(a), abs(b), 1e-12)
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf


def _training_record(run: ScriptRun) -> Any:
    return next((record for record in run.records if record.step_seconds), None)


def _median_step(run: ScriptRun) -> float | None:
    """Median step of the first rank without its first fifth; None if it crashed or made too few steps."""
    record = _training_record(run)
    if run.ended not in ("finished", "bounded", "timeout") or record is None:
        return None
    steady = record.step_seconds[max(1, len(record.step_seconds) // 5) :]
    # A trimmed mean: workers deliver in bursts, which a median would not show.
    steady = sorted(steady)[len(steady) // 20 : len(steady) - len(steady) // 20]
    return statistics.fmean(steady) if len(steady) >= 3 else None


def _losses(run: ScriptRun) -> tuple[float, ...]:
    record = _training_record(run)
    return tuple(record.losses[:LOSSES]) if record is not None else ()


def _ended(run: ScriptRun) -> str:
    lines = run.output.strip().splitlines() if run.output else []
    # The line of the error; later output, such as a launcher's summary, says less.
    errors = [each for each in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", each)]
    last = (errors or lines)[-1:]
    return f"{run.ended} with exit code {run.exit_code}" + (f": {last[0][:200]}" if last else "")


def _few(run: ScriptRun) -> str:
    record = _training_record(run)
    steps = record.steps if record is not None else 0
    return f"only {steps} steps in {run.seconds:.0f} s, too few to compare; give it more --seconds"


def _not_applied(run: ScriptRun, cures: Sequence[str]) -> str:
    """The first cure's error, as the probe reported it."""
    record = _training_record(run)
    for cure in cures:
        message = str(record.cures.get(cure, "")) if record is not None else ""
        if re.match(r"\w*(Error|Exception): ", message):
            return message
    return ""


def line(tried: Tried) -> str:
    """One line about it."""
    if tried.gain is None:
        return f"{', '.join(tried.cures)}: {tried.outcome}: {tried.why}"
    text = f"{tried.outcome}, {tried.gain:.2f} times as fast ({tried.low:.2f} to {tried.high:.2f})"
    return f"{', '.join(tried.cures)}: {text}; losses: {tried.agreement}" + (f"; {tried.why}" if tried.why else "")
