"""The machine's section of the page: curves over time, and alerts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hasten.observe.monitor.alerts import sentences
from hasten.observe.monitor.sample import Gpu, Sample
from hasten.report import words
from hasten.report.figures import NUM_COLORS, Line, color, line_chart
from hasten.report.model import Chart, Key, Note, Section
from hasten.report.read import Machine

PERCENT = (0.0, 103.0)
"""Axis limits, with a margin so that a line at 100 is fully visible."""
GIB = 1024.0
"""MiB per GiB."""

Points = list[tuple[float, float]]
"""(seconds since the start, value)."""
Curves = dict[str, Points]
"""Points by the name of what is drawn."""


def machine_section(machine: Machine | None, id_: str) -> Section | None:
    """The section with the page's id `id_`; None where nothing was recorded."""
    if machine is None:
        return None
    host = machine.ranks[min(machine.ranks)]  # every rank records the host
    total = host[-1].host.ram_total
    of_all = f"all programs, of {total / GIB:.1f} GiB" if total else "all programs"
    memory = {of_all: _of(host, lambda sample: sample.host.ram_used, GIB)}
    memory |= _of_ranks(machine, lambda sample: sample.host.rss, "this process", GIB)
    steps = _of_ranks(machine, lambda sample: sample.step_s, "a step", 1e-3)
    charts = (
        _chart("GPU utilisation (%)", _of_gpus(machine, lambda gpu: gpu.util), f"{id_}-gpu", bounds=PERCENT),
        _chart("GPU memory (GiB)", _of_gpus(machine, lambda gpu: gpu.used, GIB), f"{id_}-gpu-memory"),
        _chart("Power (W)", _of_gpus(machine, lambda gpu: gpu.power_w), f"{id_}-power"),
        _chart("Step time (ms)", steps, f"{id_}-step"),
        _chart(
            "Processor, all cores (%)",
            {"busy": _of(host, lambda sample: sample.host.cpu)},
            f"{id_}-cpu",
            bounds=PERCENT,
        ),
        _chart("Host memory (GiB)", memory, f"{id_}-memory"),
    )
    return Section(
        "The machine",
        warning=Note("To look at", tuple(sentences(machine.alerts))),
        charts=tuple(chart for chart in charts if chart is not None),
        note=" ".join(f"{remark[:1].upper()}{remark[1:]}." for remark in machine.remarks),
        id=id_,
    )


def _chart(title: str, curves: Curves, id_: str, *, bounds: tuple[float, float | None] = (0, None)) -> Chart | None:
    """The curves, as many as there are colours, each with its mean; None where nothing was recorded."""
    drawn = [(name, points) for name, points in curves.items() if len(points) > 1][:NUM_COLORS]
    if not drawn:
        return None
    keys, lines = [], []
    for place, (name, points) in enumerate(drawn, 1):
        times, values = zip(*points, strict=True)
        keys.append(Key(name, color(place), f"mean {words.number(statistics.fmean(values))}"))
        lines.append(Line(x=times, y=values, color=color(place)))
    svg = line_chart(lines, id_prefix=id_, describe=f"{title} over time", bounds=bounds)
    return Chart(svg, title, tuple(keys))


def _of(samples: Sequence[Sample], value: Callable[[Sample], float | None], scale: float = 1.0) -> Points:
    return [(sample.time, reading / scale) for sample in samples if (reading := value(sample)) is not None]


def _of_gpus(machine: Machine, value: Callable[[Gpu], float | None], scale: float = 1.0) -> Curves:
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


def _of_ranks(machine: Machine, value: Callable[[Sample], float | None], alone: str, scale: float = 1.0) -> Curves:
    """Points by the rank's name. alone: the name where there is one rank."""
    several = len(machine.ranks) > 1
    return {f"rank {rank}" if several else alone: _of(samples, value, scale) for rank, samples in machine.ranks.items()}
