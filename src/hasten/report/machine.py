"""The machine's section of the page: curves over time, their means and peaks, and alerts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hasten.observe.monitor.alerts import sentences
from hasten.observe.monitor.sample import Gpu, Sample
from hasten.report import words
from hasten.report.figures import NUM_COLORS, Line, color, curves
from hasten.report.monitor import Machine
from hasten.report.view import Key

PERCENT = (0.0, 103.0)
"""Axis limits, with a margin so that a line at 100 is fully visible."""
GIB = 1024.0
"""MiB per GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One figure with its heading and legend."""

    title: str
    figure: Markup
    keys: list[Key]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineView:
    panels: list[Panel]
    rows: list[tuple[str, str, str]]
    """Quantity, its mean, its maximum."""
    alerts: list[str]
    remarks: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Curve:
    name: str
    points: list[tuple[float, float]]
    color: str
    detail: str = ""


def machine_view(machine: Machine | None, id_: str) -> MachineView | None:
    """The section of a run with the page's id `id_`; None where nothing was recorded."""
    if machine is None:
        return None
    unit, scale = _step_unit(machine)
    panels = (
        _panel("GPU utilisation (%)", _utilisation(machine), f"{id_}-gpu", bounds=PERCENT),
        _panel("GPU memory (GiB)", _gpu_memory(machine), f"{id_}-gpu-memory"),
        _panel(f"Step time ({unit})", _steps(machine, scale), f"{id_}-step"),
        _panel("Processor, all cores (%)", _processor(machine), f"{id_}-cpu", bounds=PERCENT),
        _panel("Host memory (GiB)", _memory(machine), f"{id_}-memory"),
        _panel("Disk and network (MB/s)", _traffic(machine), f"{id_}-traffic"),
    )
    remarks = [f"{remark[:1].upper()}{remark[1:]}." for remark in machine.remarks]
    return MachineView(
        panels=[panel for panel in panels if panel is not None],
        rows=_rows(machine),
        alerts=sentences(machine.alerts),
        remarks=remarks,
    )


def _panel(
    title: str, series: Sequence[_Curve], id_: str, *, bounds: tuple[float, float | None] = (0, None)
) -> Panel | None:
    lines = [
        Line(seconds=[time for time, _ in curve.points], values=[value for _, value in curve.points], color=curve.color)
        for curve in series
        if len(curve.points) > 1
    ]
    if not lines:
        return None
    figure = curves(lines, id_prefix=id_, describe=f"{title} over time", bounds=bounds)
    keys = [Key(name=curve.name, color=curve.color, detail=curve.detail) for curve in series if len(curve.points) > 1]
    return Panel(title=title, figure=Markup(figure), keys=keys)


def _gpus(machine: Machine) -> list[tuple[str, int, int]]:
    """(name, rank, number) of each GPU; the name includes the rank only if there are several."""
    devices = sorted({(rank, gpu.index) for rank, samples in machine.ranks.items() for s in samples for gpu in s.gpus})
    several = len(machine.ranks) > 1
    return [(f"GPU {index} (rank {rank})" if several else f"GPU {index}", rank, index) for rank, index in devices]


def _of_gpu(machine: Machine, rank: int, index: int, value: Callable[[Gpu], float | None]) -> list[tuple[float, float]]:
    return [
        (sample.time, reading)
        for sample in machine.ranks[rank]
        for gpu in sample.gpus
        if gpu.index == index and (reading := value(gpu)) is not None
    ]


def _of(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> list[tuple[float, float]]:
    return [(sample.time, reading) for sample in samples if (reading := value(sample)) is not None]


def _utilisation(machine: Machine) -> list[_Curve]:
    series = []
    gpus = _gpus(machine)
    for place, (name, rank, index) in enumerate(gpus):
        points = _of_gpu(machine, rank, index, lambda gpu: gpu.util)
        series.append(_Curve(name=name, points=points, color=color(place + 1), detail=_mean(points, "%")))
    if len(gpus) == 1:
        points = _of_gpu(machine, *gpus[0][1:], lambda gpu: gpu.tensor)
        series.append(_Curve(name="its tensor cores", points=points, color="--c7", detail=_mean(points, "%")))
    return series[:NUM_COLORS]


def _gpu_memory(machine: Machine) -> list[_Curve]:
    series = []
    for place, (name, rank, index) in enumerate(_gpus(machine)[:NUM_COLORS]):
        points = _of_gpu(machine, rank, index, lambda gpu: None if gpu.used is None else gpu.used / GIB)
        total = _of_gpu(machine, rank, index, lambda gpu: gpu.total)
        detail = f"of {total[-1][1] / GIB:.0f} GiB" if total else ""
        series.append(_Curve(name=name, points=points, color=color(place + 1), detail=detail))
    return series


def _steps(machine: Machine, unit: float) -> list[_Curve]:
    """Step times in units of `unit` seconds."""
    several = len(machine.ranks) > 1
    series = []
    for place, (rank, samples) in enumerate(list(machine.ranks.items())[:NUM_COLORS]):
        points = _of(samples, lambda sample: sample.step_s)
        median = f"median {words.short_duration(_median(points))}" if points else ""
        name = f"rank {rank}" if several else "a step"
        scaled = [(time, value / unit) for time, value in points]
        series.append(_Curve(name=name, points=scaled, color=color(place + 1), detail=median))
    return series


def _step_unit(machine: Machine) -> tuple[str, float]:
    longest = max(
        (_median(_of(samples, lambda sample: sample.step_s)) for samples in machine.ranks.values()), default=0
    )
    return ("s", 1.0) if longest >= 1 else ("ms", 1e-3)


def _median(points: Sequence[tuple[float, float]]) -> float:
    return statistics.median(value for _, value in points) if points else 0.0


def _processor(machine: Machine) -> list[_Curve]:
    points = _of(_host(machine), lambda sample: sample.host.cpu)
    return [_Curve(name="busy", points=points, color="--c2", detail=_mean(points, "%"))]


def _memory(machine: Machine) -> list[_Curve]:
    host = _host(machine)
    used = _of(host, lambda sample: None if sample.host.ram_used is None else sample.host.ram_used / GIB)
    total = _of(host, lambda sample: sample.host.ram_total)
    detail = f"of {total[-1][1] / GIB:.1f} GiB" if total else ""
    series = [_Curve(name="all programs", points=used, color="--c1", detail=detail)]
    several = len(machine.ranks) > 1
    for place, (rank, samples) in enumerate(list(machine.ranks.items())[: NUM_COLORS - 1]):
        points = _of(samples, lambda sample: None if sample.host.rss is None else sample.host.rss / GIB)
        name = f"rank {rank}" if several else "this process"
        series.append(_Curve(name=name, points=points, color=color(place + 1)))
    return series


def _traffic(machine: Machine) -> list[_Curve]:
    host = _host(machine)
    sides: tuple[tuple[str, str, Callable[[Sample], float | None]], ...] = (
        ("read from disk", "--c2", lambda sample: sample.host.disk_read),
        ("written to disk", "--c6", lambda sample: sample.host.disk_write),
        ("received", "--c3", lambda sample: sample.host.net_in),
        ("sent", "--c7", lambda sample: sample.host.net_out),
    )
    return [
        _Curve(name=name, points=[(time, rate / 1e6) for time, rate in _of(host, value)], color=hue)
        for name, hue, value in sides
    ]


def _host(machine: Machine) -> tuple[Sample, ...]:
    """The samples of the first rank: every rank records the host."""
    return machine.ranks[min(machine.ranks)]


def _rows(machine: Machine) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []

    def add(name: str, points: Sequence[tuple[float, float]], form: str, unit: str) -> None:
        if points:
            values = [value for _, value in points]
            mean, most = (f"{value:{form}}{words.NBSP}{unit}" for value in (statistics.fmean(values), max(values)))
            rows.append((name, mean, most))

    for name, rank, index in _gpus(machine):
        add(f"{name}: utilisation", _of_gpu(machine, rank, index, lambda gpu: gpu.util), ".0f", "%")
        add(f"{name}: tensor cores", _of_gpu(machine, rank, index, lambda gpu: gpu.tensor), ".0f", "%")
        memory = _of_gpu(machine, rank, index, lambda gpu: None if gpu.used is None else gpu.used / GIB)
        add(f"{name}: memory", memory, ".1f", "GiB")
        add(f"{name}: power", _of_gpu(machine, rank, index, lambda gpu: gpu.power_w), ".0f", "W")
        add(f"{name}: temperature", _of_gpu(machine, rank, index, lambda gpu: gpu.temperature_c), ".0f", "°C")
    for curve in _processor(machine):
        add("Processor, all cores", curve.points, ".0f", "%")
    for curve in _memory(machine):
        add(f"Host memory: {curve.name}", curve.points, ".2f", "GiB")
    for curve in _traffic(machine):
        add(f"Rate: {curve.name}", curve.points, ".1f", "MB/s")
    return rows


def _mean(points: Sequence[tuple[float, float]], unit: str) -> str:
    return f"mean {statistics.fmean(value for _, value in points):.0f}{words.NBSP}{unit}" if points else ""
