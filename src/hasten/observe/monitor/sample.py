"""One look at the machine: what the monitor writes, and what reports, alerts and `hasten watch` read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from hasten.observe.values import entries, integer, mapping, number

CLASSIC = ("time", "gpu_util", "used", "total", "ratio")
"""The columns that GPU monitors have always written, first in the file; memory in MiB, ratio = used / total."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU at one moment; None is a reading that the driver does not support."""

    index: int
    """Number that the driver gives the GPU."""
    util: float | None = None
    """Percent of the time since the driver's last look in which a kernel ran."""
    used: float | None = None
    """MiB, of all processes."""
    total: float | None = None
    tensor: float | None = None
    """Percent of the time in which tensor cores worked; Hopper and later."""
    power_w: float | None = None
    sm_mhz: float | None = None
    mem_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    """What holds the clocks down: power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake, sync_boost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The machine and this process; rates are means since the sample before."""

    cpu: float | None = None
    """Percent of all cores together."""
    own_cores: float | None = None
    """Cores that this process used, its children left out."""
    ram_used: float | None = None
    """MiB in use without the page cache, which is freed on demand, of the machine or of the container's limit."""
    ram_total: float | None = None
    rss: float | None = None
    """MiB of this process."""
    disk_read: float | None = None
    """Bytes a second, as the next three."""
    disk_write: float | None = None
    net_in: float | None = None
    net_out: float | None = None
    load: float | None = None
    """Mean number of runnable processes over the last minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    time: float
    """Seconds since the run started."""
    step: int | None = None
    """Steps done; None where nobody counts."""
    step_s: float | None = None
    """Mean seconds of the steps since the sample before, of ten at least; None where none finished since."""
    work_s: float | None = None
    """Part of `step_s` in which this rank did not wait for others; None where nobody measures."""
    host: Host = Host()
    gpus: tuple[Gpu, ...] = ()
    process: int = 0
    """0, and one more for every resume. The reader counts it; it is not written."""


_GPU = tuple(field.name for field in fields(Gpu))
_HOST = tuple(field.name for field in fields(Host))
_PACE = ("step", "step_s", "work_s")
_REST = tuple(name for name in _GPU if name not in ("index", "util", "used", "total"))
COLUMNS = (*CLASSIC, "gpu", *_REST, *_PACE, *_HOST)
"""Columns of monitor.csv: one row for each sample and GPU; without a GPU one row a sample, those fields empty."""


def rows_of(sample: Sample) -> list[dict[str, str]]:
    """The sample's rows for a CSV file with `COLUMNS`, as text; unknown is empty."""
    same = {name: _text(getattr(sample, name)) for name in ("time", *_PACE)}
    same |= {name: _text(getattr(sample.host, name)) for name in _HOST}
    return [same | _gpu_row(gpu) for gpu in sample.gpus] or [same]


def _gpu_row(gpu: Gpu) -> dict[str, str]:
    ratio = gpu.used / gpu.total if gpu.used is not None and gpu.total else None
    row = {name: _text(getattr(gpu, name)) for name in (*_REST, "used", "total")}
    return row | {"gpu": str(gpu.index), "gpu_util": _text(gpu.util), "ratio": _text(ratio)}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e5 else f"{value:.0f}"


def to_record(sample: Sample) -> dict[str, Any]:
    """A JSON object; what is not known is left out."""
    record: dict[str, Any] = {"kind": "sample", "time": round(sample.time, 3)}
    record |= _known_values(sample, _PACE)
    record["host"] = _known_values(sample.host, _HOST)
    if sample.gpus:
        record["gpus"] = [_known_values(gpu, _GPU) for gpu in sample.gpus]
    return record


def _known_values(item: Any, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(item, name) for name in names}
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


def from_record(record: dict[str, Any], *, process: int = 0) -> Sample | None:
    """The sample that `to_record` wrote; None for anything that is not one. Fields of a wrong kind are unknown."""
    time = number(record.get("time"))
    if time is None:
        return None
    host = mapping(record.get("host"))
    readings = [_gpu_from(mapping(gpu)) for gpu in entries(record.get("gpus"))]
    return Sample(
        time=time,
        step=integer(record.get("step")),
        step_s=number(record.get("step_s")),
        work_s=number(record.get("work_s")),
        host=Host(**{name: number(host.get(name)) for name in _HOST}),
        gpus=tuple(gpu for gpu in readings if gpu is not None),
        process=process,
    )


def _gpu_from(record: dict[str, Any]) -> Gpu | None:
    index = integer(record.get("index"))
    if index is None:
        return None
    reasons = record.get("throttle")
    throttle = tuple(str(reason) for reason in reasons) if isinstance(reasons, list) else None
    values = {name: number(record.get(name)) for name in _GPU if name not in ("index", "throttle")}
    return Gpu(index=index, throttle=throttle, **values)
