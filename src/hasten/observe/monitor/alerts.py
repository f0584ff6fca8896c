"""Alerts about problems in a run's samples. Pure functions: the same samples give the same alerts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hasten.observe.monitor.recording import Gpu, Sample
from hasten.observe.values import duration

LEAST_S = 60.0
"""Seconds that a state must last before an alert is raised."""
IDLE_BELOW = 10.0
"""Percent of GPU utilisation."""
RAM_FULL = 0.95
SLOW_RANK = 1.25
"""Times the median of the other ranks' step time."""
SLOW_CLOCK = 0.8
"""Share of the highest clock so far, below which a power cap raises an alert; most GPUs run well at a cap alone."""
HOT = {"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    kind: str
    """idle_gpu, throttling, ram_full or straggler."""
    subject: str
    """The subject of the alert: "GPU 0", "rank 1", "host"."""
    text: str
    """One sentence for a person."""


def alerts_of(samples: Sequence[Sample], *, rank: int = 0, world_size: int = 1) -> list[Alert]:
    """Alerts of one rank, whose samples are in the order of time."""
    trained = list(training(samples))
    alerts: list[Alert] = []
    for index in sorted({gpu.index for sample in samples for gpu in sample.gpus}):
        # Ranks on different machines number their GPUs independently.
        name = f"GPU {index} (rank {rank})" if world_size > 1 else f"GPU {index}"
        alerts += [*idle_gpu(trained, index, name), *throttling(trained, index, name)]
    return [*alerts, *ram_full(samples)]


def alerts_of_ranks(ranks: Mapping[int, Sequence[Sample]]) -> list[Alert]:
    """Alerts of every rank and of comparisons between ranks. A shortage of host memory is reported once."""
    by_subject: dict[tuple[str, str], Alert] = {}
    for rank, samples in sorted(ranks.items()):
        for alert in alerts_of(samples, rank=rank, world_size=len(ranks)):
            by_subject.setdefault((alert.kind, alert.subject), alert)
    # Processes before the last may have been more or fewer, and so slower or faster.
    last = {rank: [each for each in samples if each.process == samples[-1].process] for rank, samples in ranks.items()}
    return [*by_subject.values(), *straggler({rank: pace(samples) for rank, samples in last.items()})]


def sentences(alerts: Sequence[Alert]) -> list[str]:
    """One sentence for each kind of alert: the text of the first, and its other subjects."""
    kinds: dict[str, list[Alert]] = {}
    for alert in alerts:
        kinds.setdefault(alert.kind, []).append(alert)
    texts = []
    for first, *others in kinds.values():
        likewise = f"; likewise {', '.join(alert.subject for alert in others)}" if others else ""
        texts.append(f"{first.text[:1].upper()}{first.text[1:]}{likewise}.")
    return texts


def training(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Samples after each process's first finished step, before which a GPU may wait; all if steps are not counted."""
    for _, group in groupby(samples, key=lambda sample: sample.process):
        first: int | None = None
        for sample in group:
            if sample.step is not None and first is None:
                first = sample.step
            if sample.step is None or (first is not None and sample.step > first):
                yield sample


def idle_gpu(samples: Sequence[Sample], index: int, name: str) -> list[Alert]:
    """A GPU that is almost idle while the run trains."""
    readings = [(time, gpu.util < IDLE_BELOW) for time, gpu in _readings(samples, index) if gpu.util is not None]
    lasted = _seconds(readings)
    if not lasted:
        return []
    whole = duration(samples[-1].time - samples[0].time)
    text = (
        f"{name} was idle (below {IDLE_BELOW:.0f} %) for {duration(lasted)} of {whole} of training: the data, a "
        "validation or a synchronisation holds it up; hasten doctor says which"
    )
    return [Alert(kind="idle_gpu", subject=name, text=text)]


def throttling(samples: Sequence[Sample], index: int, name: str) -> list[Alert]:
    """A GPU whose clocks are held down by heat or by its power supply, or far down by its power cap."""
    readings = _readings(samples, index)
    slow = SLOW_CLOCK * max((gpu.sm_mhz for _, gpu in readings if gpu.sm_mhz), default=0.0)
    capped = HOT | {"power_cap"}
    held = [
        (time, set(gpu.throttle or ()) & (capped if gpu.sm_mhz is not None and gpu.sm_mhz < slow else HOT))
        for time, gpu in readings
    ]
    lasted = _seconds([(time, bool(reasons)) for time, reasons in held])
    if not lasted:
        return []
    reasons = ", ".join(sorted(set().union(*(each for _, each in held))))
    text = f"{name} was throttled ({reasons}) for {duration(lasted)}: look at its cooling and its power limit"
    return [Alert(kind="throttling", subject=name, text=text)]


def ram_full(samples: Sequence[Sample]) -> list[Alert]:
    """A host with next to no memory left."""
    most = max((s.host.ram_used / s.host.ram_total for s in samples if s.host.ram_used and s.host.ram_total), default=0)
    if most < RAM_FULL:
        return []
    text = f"the host's memory was {100 * most:.0f} % full: a little more and the system ends the run"
    return [Alert(kind="ram_full", subject="host", text=text)]


def straggler(paces: Mapping[int, float | None]) -> list[Alert]:
    """Ranks whose seconds per step are well above the median of the other ranks."""
    known = {rank: seconds for rank, seconds in paces.items() if seconds}
    alerts = []
    for rank, step_s in sorted(known.items()):
        others = [value for other, value in known.items() if other != rank]
        usual = statistics.median(others) if others else step_s
        if step_s > SLOW_RANK * usual:
            text = (
                f"rank {rank} takes {1000 * step_s:.0f} ms a step and the others {1000 * usual:.0f} ms: all wait for "
                "it; look at what else runs there, at its GPU and at its share of the work"
            )
            alerts.append(Alert(kind="straggler", subject=f"rank {rank}", text=text))
    return alerts


def pace(samples: Sequence[Sample]) -> float | None:
    """Median seconds per step."""
    paces = [sample.step_s for sample in samples if sample.step_s is not None]
    return statistics.median(paces) if paces else None


def _seconds(points: Sequence[tuple[float, bool]]) -> float:
    """Seconds in spells of flagged times that last `LEAST_S` or more."""
    spells = [[time for time, _ in group] for is_on, group in groupby(points, key=lambda point: point[1]) if is_on]
    return sum(times[-1] - times[0] for times in spells if times[-1] - times[0] >= LEAST_S)


def _readings(samples: Sequence[Sample], index: int) -> list[tuple[float, Gpu]]:
    """Times and readings of one GPU."""
    return [(sample.time, gpu) for sample in samples for gpu in sample.gpus if gpu.index == index]
