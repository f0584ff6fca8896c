"""Two processes on this machine against one: a short real run as one process with one thread, as one with all threads
that two workers have together, and as two with one thread each.

The cores of a machine share its memory bandwidth and its largest cache, so two processes on two cores are not expected
to be twice as fast as one on one, and what they lose is not the loss of the strategy alone: the third arm, one process
with two threads, has the same hardware and nothing to exchange.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.data import SMALL, phantoms
from benchmarks.harness import hardware

ARMS = {"one_1_thread": (1, 1), "one_2_threads": (1, 2), "two_1_thread": (2, 1)}
"""Processes, and threads of each."""
_SETTINGS = (
    "sample.batch_size=4",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "train.device=cpu",
    "data.split.fraction=0.05",
    "observe.trackers=[]",
)
NOTE = (
    "The cores share memory bandwidth and the last cache: two processes with a thread each have the hardware of one "
    "process with two threads, which is what they should be measured by."
)


def efficiency(
    work: Path,
    data: Path | None = None,
    *,
    rounds: int = 5,
    steps: int = 40,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Seconds of an epoch and of the whole, of every arm and round, and what they say; ready for JSON.

    work: a folder for the cache and the runs. data: a Decathlon folder; without it phantoms are written. The arms take
    turns, in reverse order every other round, after a round that fills the cache. Raises RuntimeError if a run fails.
    """
    from hasten.config.load import dump_run, load_run
    from hasten.observe.cpu_load import LoadMeter
    from hasten.training.plan import plan_run

    work.mkdir(parents=True, exist_ok=True)
    source = data or phantoms(work / "phantoms", 20, SMALL)
    given = [f"data.source={source}", f"cache.dir={work / 'cache'}", f"train.steps={steps}"]
    given += [f"train.validate_every={steps}", f"train.checkpoint_every={steps}", *_SETTINGS]
    settings = work / "efficiency.yaml"
    settings.write_text(dump_run(plan_run(load_run(None, given)).config))
    results: dict[str, dict[str, list[float]]] = {
        arm: {"epoch_s": [], "total_s": [], "others_cores": []} for arm in ARMS
    }
    for turn in range(rounds + 1):
        for arm in list(ARMS)[:: 1 if turn % 2 else -1]:
            meter = LoadMeter()
            epoch_s, total_s = _run(settings, work / "run", *ARMS[arm])
            others = meter.others()
            tell(f"round {turn} of {rounds}, {arm}: epoch {epoch_s:.2f} s, {others:.2f} cores used by others")
            if turn > 0:
                for name, value in (("epoch_s", epoch_s), ("total_s", total_s), ("others_cores", others)):
                    results[arm][name].append(value)
    return {"arms": results, **ratios({arm: values["epoch_s"] for arm, values in results.items()}), "rounds": rounds,
            "steps": steps, "data": source.name, "note": NOTE, "machine": hardware()}  # fmt: skip


def ratios(epochs: dict[str, list[float]]) -> dict[str, Any]:
    """What the arms' epochs say: each speed-up as the median over the rounds, with the interval that holds it."""
    from hasten.observe.compare import judge

    pairs = {
        "two_processes": ("one_1_thread", "two_1_thread"),
        "two_threads": ("one_1_thread", "one_2_threads"),
        "processes_over_threads": ("one_2_threads", "two_1_thread"),
    }
    speedups: dict[str, Any] = {}
    for name, (base, arm) in pairs.items():
        gain, low, high, verdict = judge(epochs[base], epochs[arm], 0.03)
        speedups[name] = {"speedup": gain, "low": low, "high": high, "verdict": verdict}
    return {
        "speedups": speedups,
        "efficiency": {name: speedups[name]["speedup"] / 2 for name in ("two_processes", "two_threads")},
        "median_epoch_s": {arm: statistics.median(values) for arm, values in epochs.items()},
    }


def _run(settings: Path, folder: Path, processes: int, threads: int) -> tuple[float, float]:
    """Seconds of an epoch, and of the whole run as it counts itself, in a folder that is removed again."""
    from hasten.scaling.logs import StudyEntry, read_run_log
    from hasten.scaling.study import command_of, last_error, start

    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_suffix(".log")
    code = start(command_of(settings, folder, processes), threads=threads, log=log)
    if code != 0:
        raise RuntimeError(f"{processes} processes with {threads} threads: exit code {code}, {last_error(log)}")
    entry = StudyEntry(world=processes, strategy="ddp" if processes > 1 else "single", seed=0, folder=folder.name)
    measured, message = read_run_log(folder.parent, entry)
    epoch_s = measured.epoch_s(None) if measured is not None else None
    if measured is None or epoch_s is None or measured.total_s is None:
        raise RuntimeError(f"{folder.name}: {' '.join(message)}")
    shutil.rmtree(folder, ignore_errors=True)
    return epoch_s, measured.total_s
