"""Alerts about problems in a run's samples. Pure functions: the same samples give the same alerts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hasten.observe.monitor.sample import Gpu, Sample
from hasten.observe.values import duration

BLOCK_S = 60.0
"""Seconds that a state must last before an alert is raised."""
BLOCK_SAMPLES = 5
IDLE_BELOW = 10.0
"""Percent of GPU utilisation."""
CREEP_SPAN_S = 180.0
CREEP_MIB, CREEP_SHARE = 256.0, 0.05
"""Growth that raises an alert: at least this much, and at least this share of the initial value."""
CREEP_WARM_UP = 0.2
"""Share of the time at the beginning in which buffers and caches may still fill."""
RAM_FULL = 0.95
RAM_SOON_S = 600.0
SLOW_RANK = 1.25
"""Times the median of the other ranks' step time."""
SLOW_CLOCK = 0.8
"""Share of the highest clock so far, below which a power cap raises an alert; most GPUs run well at a cap alone."""
HOT = {"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    kind: str
    """idle_gpu, throttling, gpu_memory_creep, memory_creep, ram_full, ram_soon or straggler."""
    subject: str
    """The subject of the alert: "GPU 0", "rank 1", "host"."""
    text: str
    """One sentence for a person."""
    since_s: float
    """Seconds since the run started."""


def alerts_of(samples: Sequence[Sample], *, rank: int = 0, world_size: int = 1, live: bool = False) -> list[Alert]:
    """Alerts of one rank, whose samples are in the order of time. live: forecasts as well."""
    trained = list(training(samples))
    alerts: list[Alert] = []
    for index in sorted({gpu.index for sample in samples for gpu in sample.gpus}):
        # Ranks on different machines number their GPUs independently.
        name = f"GPU {index} (rank {rank})" if world_size > 1 else f"GPU {index}"
        for look in (idle_gpu, throttling, gpu_creep):
            alerts += look(trained, index, name)
    alerts += [*host_creep(trained, rank), *ram_full(samples)]
    return alerts + (ram_soon(trained) if live else [])


def alerts_of_ranks(ranks: Mapping[int, Sequence[Sample]], *, live: bool = False) -> list[Alert]:
    """Alerts of every rank and of comparisons between ranks. A shortage of host memory is reported once."""
    by_subject: dict[tuple[str, str], Alert] = {}
    for rank, samples in sorted(ranks.items()):
        for alert in alerts_of(samples, rank=rank, world_size=len(ranks), live=live):
            by_subject.setdefault((alert.kind, alert.subject), alert)
    late = {rank: samples[-1].time for rank, samples in ranks.items() if samples}
    slow = straggler({rank: pace(samples) for rank, samples in ranks.items()}, since_s=max(late.values(), default=0.0))
    return [*by_subject.values(), *slow]


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

    spells = _spells([(time, gpu.util < IDLE_BELOW) for time, gpu in _readings(samples, index) if gpu.util is not None])
    if not spells:
        return []
    lasted, whole = sum(end - start for start, end in spells), samples[-1].time - samples[0].time
    text = (
        f"{name} was idle (below {IDLE_BELOW:.0f} %) for {duration(lasted)} of {duration(whole)} of training: "
        "the data, a validation or a synchronisation holds it up; hasten doctor says which"
    )
    return [Alert(kind="idle_gpu", subject=name, text=text, since_s=spells[0][0])]


def throttling(samples: Sequence[Sample], index: int, name: str) -> list[Alert]:
    """A GPU whose clocks are held down by heat or by its power supply, or far down by its power cap."""
    readings = _readings(samples, index)
    slow = SLOW_CLOCK * max((gpu.sm_mhz for _, gpu in readings if gpu.sm_mhz), default=0.0)
    all_reasons: set[str] = set()
    points = []
    for time, gpu in readings:
        if gpu.throttle is not None:
            capped = "power_cap" in gpu.throttle and gpu.sm_mhz is not None and gpu.sm_mhz < slow
            reasons = HOT & set(gpu.throttle) | ({"power_cap"} if capped else set())
            all_reasons |= reasons
            points.append((time, bool(reasons)))
    spells = _spells(points, share=0.5)
    if not spells:
        return []
    text = (
        f"{name} was throttled ({', '.join(sorted(all_reasons))}) for "
        f"{duration(sum(end - start for start, end in spells))}: look at its cooling and its power limit"
    )
    return [Alert(kind="throttling", subject=name, text=text, since_s=spells[0][0])]


def gpu_creep(samples: Sequence[Sample], index: int, name: str) -> list[Alert]:
    """GPU memory that grows steadily."""
    points = [(time, gpu.used) for time, gpu in _readings(samples, index) if gpu.used is not None]
    return _creep(points, name, "memory", "tensors that still hang on their graph, as a loss that is summed up")


def host_creep(samples: Sequence[Sample], rank: int) -> list[Alert]:
    """This process's memory that grows steadily."""
    points = [(s.time, s.host.rss) for s in samples if s.host.rss is not None]
    return _creep(points, f"rank {rank}", "host memory of the process", "lists or caches that are never emptied")


def ram_full(samples: Sequence[Sample]) -> list[Alert]:
    """A host with next to no memory left."""

    shares = [
        (sample.time, sample.host.ram_used / sample.host.ram_total)
        for sample in samples
        if sample.host.ram_used is not None and sample.host.ram_total
    ]
    spells = _spells([(time, share >= RAM_FULL) for time, share in shares], block_s=5.0)
    if not spells:
        return []
    most = max(share for _, share in shares)
    text = f"the host's memory was {100 * most:.0f} % full: a little more and the system ends the run"
    return [Alert(kind="ram_full", subject="host", text=text, since_s=spells[0][0])]


def ram_soon(samples: Sequence[Sample]) -> list[Alert]:
    """A host whose memory will be full within `RAM_SOON_S` if it fills on as it did over the last two minutes."""
    end = samples[-1].time if samples else 0.0
    points = [(s.time, s.host.ram_used) for s in samples if s.time >= end - 2 * BLOCK_S and s.host.ram_used is not None]
    total = samples[-1].host.ram_total if samples else None
    if len(points) < 2 * BLOCK_SAMPLES or points[-1][0] - points[0][0] < 1.5 * BLOCK_S or not total:
        return []
    rate, used = slope(points), points[-1][1]
    grown = rate * (points[-1][0] - points[0][0])
    if used < 0.7 * total or grown < 0.02 * total or (total - used) > rate * RAM_SOON_S:
        return []
    remaining = duration((total - used) / rate)
    text = f"the host's memory ({100 * used / total:.0f} % full) will be full in {remaining} at this rate"
    return [Alert(kind="ram_soon", subject="host", text=text, since_s=end)]


def straggler(paces: Mapping[int, float | None], *, since_s: float = 0.0) -> list[Alert]:
    """Ranks whose seconds per step are well above the median of the other ranks."""
    known = {rank: seconds_ for rank, seconds_ in paces.items() if seconds_}
    alerts = []
    for rank, step_s in sorted(known.items()):
        others = [value for other, value in known.items() if other != rank]
        usual = statistics.median(others) if others else step_s
        if step_s > SLOW_RANK * usual:
            text = (
                f"rank {rank} takes {1000 * step_s:.0f} ms a step and the others {1000 * usual:.0f} ms: all wait for "
                "it; look at what else runs there, at its GPU and at its share of the work"
            )
            alerts.append(Alert(kind="straggler", subject=f"rank {rank}", text=text, since_s=since_s))
    return alerts


def pace(samples: Sequence[Sample]) -> float | None:
    """Median seconds per step, without the waits for other ranks where those are known."""
    paces = [s.step_s if s.work_s is None else s.work_s for s in samples if s.step_s is not None]
    return statistics.median(pace for pace in paces if pace is not None) if paces else None


def slope(points: Sequence[tuple[float, float]], most: int = 60) -> float:
    """Theil-Sen: the median slope between any two of at most `most` points, which outliers hardly move."""
    every = max(1, -(-len(points) // most))
    few = points[::every]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(few)
        for later in few[number + 1 :]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _creep(points: Sequence[tuple[float, float]], subject: str, what: str, why: str) -> list[Alert]:
    if not points:
        return []
    begin = points[0][0] + CREEP_WARM_UP * (points[-1][0] - points[0][0])
    points = [point for point in points if point[0] >= begin]
    span = points[-1][0] - points[0][0]
    if span < CREEP_SPAN_S or len(points) < 12:
        return []
    rate = slope(points)
    third = len(points) // 3
    levels = [statistics.median(value for _, value in part) for part in (points[:third], points[-third:])]
    middle = statistics.median(value for _, value in points[third:-third])
    grown = rate * span
    # A cache that fills up, or a single jump, has a third without growth.
    steady = min(middle - levels[0], levels[1] - middle) > 0.25 * (levels[1] - levels[0])
    if grown < max(CREEP_MIB, CREEP_SHARE * levels[0]) or not steady:
        return []
    is_gpu = subject.startswith("GPU")
    text = f"{what} of {subject}" if is_gpu else f"{what} ({subject})"
    text += f" grew by {grown:.0f} MiB in {duration(span)}, {60 * rate:.1f} MiB a minute, and keeps growing: "
    text += f"look for {why}"
    return [
        Alert(kind="gpu_memory_creep" if is_gpu else "memory_creep", subject=subject, text=text, since_s=points[0][0])
    ]


def _spells(
    points: Sequence[tuple[float, bool]], *, share: float = 0.8, block_s: float = BLOCK_S
) -> list[tuple[float, float]]:
    """(begin, end) of the flagged times in windows of `block_s` that hold a `share` of such; joined where they meet."""
    spells: list[tuple[float, float]] = []
    first = count = 0
    for last, (end, is_on) in enumerate(points):
        count += is_on
        # The shortest window that is long enough.
        while last - first >= BLOCK_SAMPLES and end - points[first + 1][0] >= block_s:
            count -= points[first][1]
            first += 1
        size = last - first + 1
        if end - points[first][0] < block_s or size < BLOCK_SAMPLES or count < share * size:
            continue
        on = [time for time, flagged in points[first : last + 1] if flagged]
        if spells and on[0] <= spells[-1][1]:
            spells[-1] = (spells[-1][0], max(spells[-1][1], on[-1]))
        else:
            spells.append((on[0], on[-1]))
    return spells


def _readings(samples: Sequence[Sample], index: int) -> list[tuple[float, Gpu]]:
    """Times and readings of one GPU."""
    return [(sample.time, gpu) for sample in samples for gpu in sample.gpus if gpu.index == index]
