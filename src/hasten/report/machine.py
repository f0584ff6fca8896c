"""The machine's section of the page: curves over time, their means and peaks, and alerts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from hasten.observe.monitor.alerts import sentences
from hasten.observe.monitor.sample import Gpu, Sample
from hasten.report import words
from hasten.report.figures import NUM_COLORS, Line, color, line_chart
from hasten.report.model import Chart, Key, Note, Section, Table
from hasten.report.read import Machine

PERCENT = (0.0, 103.0)
"""Axis limits, with a margin so that a line at 100 is fully visible."""
GIB = 1024.0
"""MiB per GiB."""

Points = list[tuple[float, float]]
"""(seconds since the start, value)."""
Curve = tuple[Key, Points]


def machine_section(machine: Machine | None, id_: str) -> Section | None:
    """The section with the page's id `id_`; None where nothing was recorded."""
    if machine is None:
        return None
    # Every rank records the host.
    host = machine.ranks[min(machine.ranks)]
    processor = _of(host, lambda sample: sample.host.cpu)
    memory, traffic = _memory(machine, host), _traffic(host)
    step_unit, steps = _steps(machine)
    charts = (
        _chart("GPU utilisation (%)", _utilisation(machine), f"{id_}-gpu", bounds=PERCENT),
        _chart("GPU memory (GiB)", _gpu_memory(machine), f"{id_}-gpu-memory"),
        _chart(f"Step time ({step_unit})", steps, f"{id_}-step"),
        _chart(
            "Processor, all cores (%)",
            [(Key("busy", "--c2", _mean(processor)), processor)],
            f"{id_}-cpu",
            bounds=PERCENT,
        ),
        _chart("Host memory (GiB)", memory, f"{id_}-memory"),
        _chart("Disk and network (MB/s)", traffic, f"{id_}-traffic"),
    )
    rows = [
        *_gpu_rows(machine),
        *_row("Processor, all cores", processor, ".0f", "%"),
        *(row for key, points in memory for row in _row(f"Host memory: {key.name}", points, ".2f", "GiB")),
        *(row for key, points in traffic for row in _row(f"Rate: {key.name}", points, ".1f", "MB/s")),
    ]
    return Section(
        "The machine",
        warning=Note("To look at", tuple(sentences(machine.alerts))),
        charts=tuple(chart for chart in charts if chart is not None),
        table=Table(("What", "Mean", "Highest"), tuple(rows), (1, 2)),
        folded="Means and peaks" if rows else "",
        note=" ".join(f"{remark[:1].upper()}{remark[1:]}." for remark in machine.remarks),
        id=id_,
    )


def _chart(
    title: str, curves: Iterable[Curve], id_: str, *, bounds: tuple[float, float | None] = (0, None)
) -> Chart | None:
    drawn = [(key, points) for key, points in curves if len(points) > 1]
    if not drawn:
        return None
    lines = [
        Line(x=[time for time, _ in points], y=[value for _, value in points], color=key.color) for key, points in drawn
    ]
    svg = line_chart(lines, id_prefix=id_, describe=f"{title} over time", bounds=bounds)
    return Chart(svg, title, tuple(key for key, _ in drawn))


def _of(samples: Sequence[Sample], value: Callable[[Sample], float | None], scale: float = 1.0) -> Points:
    return [(sample.time, reading / scale) for sample in samples if (reading := value(sample)) is not None]


def _of_gpus(machine: Machine, value: Callable[[Gpu], float | None], scale: float = 1.0) -> dict[str, Points]:
    """Points by the GPU's name, which includes the rank only if there are several."""
    devices = sorted({(rank, gpu.index) for rank, samples in machine.ranks.items() for s in samples for gpu in s.gpus})
    several = len(machine.ranks) > 1
    return {
        f"GPU {index} (rank {rank})" if several else f"GPU {index}": [
            (sample.time, reading / scale)
            for sample in machine.ranks[rank]
            for gpu in sample.gpus
            if gpu.index == index and (reading := value(gpu)) is not None
        ]
        for rank, index in devices
    }


def _of_ranks(
    machine: Machine, value: Callable[[Sample], float | None], alone: str, scale: float = 1.0
) -> dict[str, Points]:
    """Points by the rank's name. alone: the name where there is one rank."""
    several = len(machine.ranks) > 1
    return {f"rank {rank}" if several else alone: _of(samples, value, scale) for rank, samples in machine.ranks.items()}


def _curves(points: dict[str, Points], detail: Callable[[str], str] = lambda name: "") -> list[Curve]:
    """Curves in the colours after the first, as many as there are."""
    named = list(points.items())[:NUM_COLORS]
    return [(Key(name, color(place + 1), detail(name)), each) for place, (name, each) in enumerate(named)]


def _utilisation(machine: Machine) -> list[Curve]:
    busy = _of_gpus(machine, lambda gpu: gpu.util)
    tensor = _of_gpus(machine, lambda gpu: gpu.tensor) if len(busy) == 1 else {}
    return [
        *_curves(busy, lambda name: _mean(busy[name])),
        *((Key("its tensor cores", "--c7", _mean(points)), points) for points in tensor.values()),
    ]


def _gpu_memory(machine: Machine) -> list[Curve]:
    total = _of_gpus(machine, lambda gpu: gpu.total, GIB)
    used = _of_gpus(machine, lambda gpu: gpu.used, GIB)
    return _curves(used, lambda name: f"of {total[name][-1][1]:.0f} GiB" if total[name] else "")


def _steps(machine: Machine) -> tuple[str, list[Curve]]:
    """The unit, seconds or milliseconds, and step times in it."""
    seconds = _of_ranks(machine, lambda sample: sample.step_s, "a step")
    medians = {name: statistics.median(value for _, value in points) for name, points in seconds.items() if points}
    unit, scale = ("s", 1.0) if max(medians.values(), default=0.0) >= 1 else ("ms", 1e-3)
    scaled = {name: [(time, value / scale) for time, value in points] for name, points in seconds.items()}
    return unit, _curves(
        scaled, lambda name: f"median {words.short_duration(medians[name])}" if name in medians else ""
    )


def _memory(machine: Machine, host: Sequence[Sample]) -> list[Curve]:
    used = _of(host, lambda sample: sample.host.ram_used, GIB)
    total = _of(host, lambda sample: sample.host.ram_total, GIB)
    ranks = _of_ranks(machine, lambda sample: sample.host.rss, "this process", GIB)
    detail = f"of {total[-1][1]:.1f} GiB" if total else ""
    return [(Key("all programs", "--c1", detail), used), *_curves(ranks)[: NUM_COLORS - 1]]


def _traffic(host: Sequence[Sample]) -> list[Curve]:
    return [
        (Key("read from disk", "--c2"), _of(host, lambda sample: sample.host.disk_read, 1e6)),
        (Key("written to disk", "--c6"), _of(host, lambda sample: sample.host.disk_write, 1e6)),
        (Key("received", "--c3"), _of(host, lambda sample: sample.host.net_in, 1e6)),
        (Key("sent", "--c7"), _of(host, lambda sample: sample.host.net_out, 1e6)),
    ]


def _gpu_rows(machine: Machine) -> Iterable[tuple[str, str, str]]:
    quantities: tuple[tuple[str, dict[str, Points], str, str], ...] = (
        ("utilisation", _of_gpus(machine, lambda gpu: gpu.util), ".0f", "%"),
        ("tensor cores", _of_gpus(machine, lambda gpu: gpu.tensor), ".0f", "%"),
        ("memory", _of_gpus(machine, lambda gpu: gpu.used, GIB), ".1f", "GiB"),
        ("power", _of_gpus(machine, lambda gpu: gpu.power_w), ".0f", "W"),
        ("temperature", _of_gpus(machine, lambda gpu: gpu.temperature_c), ".0f", "°C"),
    )
    for name in quantities[0][1]:
        for what, points, form, unit in quantities:
            yield from _row(f"{name}: {what}", points[name], form, unit)


def _row(name: str, points: Points, form: str, unit: str) -> list[tuple[str, str, str]]:
    """Mean and maximum; none where nothing was recorded."""
    values = [value for _, value in points]
    if not values:
        return []
    mean, most = (f"{value:{form}}{words.NBSP}{unit}" for value in (statistics.fmean(values), max(values)))
    return [(name, mean, most)]


def _mean(points: Points) -> str:
    return f"mean {statistics.fmean(value for _, value in points):.0f}{words.NBSP}%" if points else ""
