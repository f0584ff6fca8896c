"""One look at the machine: what the monitor writes, and what reports, alerts and `hasten watch` read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError


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
    load: float | None = None
    """Mean number of runnable processes over the last minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    time: FiniteFloat
    """Seconds since the run started."""
    step: int | None = None
    """Steps done; None where nobody counts."""
    step_s: float | None = None
    """Mean seconds of the steps since the sample before, of ten at least; None where none finished since."""
    host: Host = Host()
    gpus: tuple[Gpu, ...] = ()
    process: int = 0
    """0, and one more for every resume. The reader counts it; it is not written."""


_PARSER = TypeAdapter(Sample)


def to_record(sample: Sample) -> dict[str, Any]:
    """A JSON object; what is not known is left out."""
    return {"kind": "sample", **_PARSER.dump_python(sample, exclude_none=True, exclude={"process"})}


def from_record(record: dict[str, Any], *, process: int = 0) -> Sample | None:
    """The sample that `to_record` wrote; None for anything that is not one."""
    try:
        return replace(_PARSER.validate_python(record), process=process)
    except ValidationError:
        return None
