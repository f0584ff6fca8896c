"""What finished runs of the ladder's arms say about time to a Dice: claims and series. Bounds are told as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.harness import Claim
from benchmarks.ladder.outcome import Result, epoch_seconds, median_time, time_to


def faster(name: str, ours: Sequence[Result], peer: Sequence[Result], level: float, goal: float) -> Claim:
    """The claim that ours reaches `level` in 1 / `goal` of the peer's time. Ours must be a time, not a bound."""
    mine, theirs = median_time(ours, level), median_time(peer, level)
    if mine is None or theirs is None or not mine.reached:
        why = "not run" if mine is None or theirs is None else "not reached by Hasten"
        return Claim.at_least(f"{name} ({why})", None, goal)
    if not theirs.reached:
        name += f" (at least: stopped after {theirs.seconds:.0f} s)"
    return Claim.at_least(name, theirs.seconds / mine.seconds, goal)


def series(results: Mapping[str, Sequence[Result]], levels: Sequence[float]) -> dict[str, list[float]]:
    """Raw seconds of every arm and level; `_at_least_s` holds those of the runs that were cut off."""
    entries: dict[str, list[float]] = {}
    for arm, runs in results.items():
        for level in levels:
            times = [time_to(run, level) for run in runs]
            entries[f"{arm}/to_{level:.2f}_s"] = [time.seconds for time in times if time.reached]
            entries[f"{arm}/to_{level:.2f}_at_least_s"] = [time.seconds for time in times if not time.reached]
        entries[f"{arm}/best"] = [run["best"] for run in runs if run["best"] is not None]
        entries[f"{arm}/epoch_s"] = [value for run in runs if (value := epoch_seconds([run])) is not None]
        for use in ("cpu", "gpu"):
            entries[f"{arm}/{use}_percent"] = [run["utilisation"][use] for run in runs if use in run["utilisation"]]
    return {name: values for name, values in entries.items() if values}
