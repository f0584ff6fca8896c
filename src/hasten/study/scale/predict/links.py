"""The links between workers: measured, or named with an assumed speed."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.files import expanded
from hasten.observe.values import mapping, number

ASSUMED_BANDWIDTH, ASSUMED_LATENCY = 0.2, 0.4
"""Relative standard deviations of a named link's figures between installations of the same hardware."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The connection of one worker, or of one adapter of a node."""

    name: str
    latency_s: float
    """Seconds of a message independent of its size: the alpha of the cost models."""
    bytes_per_s: float
    """Bytes a second each way in a large all-reduce (the "bus bandwidth" of nccl-tests): one over their beta."""
    latency_error: float = ASSUMED_LATENCY
    """Relative standard deviation."""
    bandwidth_error: float = ASSUMED_BANDWIDTH
    """Relative standard deviation."""
    trees: bool = True
    """Whether the library may use trees: NCCL does, gloo only uses rings."""
    note: str = ""
    """Source of the figures."""

    def __str__(self) -> str:
        return f"{self.name} ({1e6 * self.latency_s:.3g} us, {self.bytes_per_s / 1e9:.3g} GB/s)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """How workers are connected: `per_node` of them by `inside`, nodes by `adapters` links `between`."""

    between: Link
    inside: Link | None = None
    per_node: int = 1
    adapters: int = 1
    """Links `between` of a node, which its workers share."""

    def __post_init__(self) -> None:
        assert self.per_node >= 1
        assert self.adapters >= 1
        assert self.per_node == 1 or self.inside is not None, "workers of a node are joined by something"

    def __str__(self) -> str:
        if self.inside is None or self.per_node == 1:
            return f"all workers by {self.between}"
        count = f"{self.adapters} x " if self.adapters > 1 else ""
        return f"nodes of {self.per_node} by {self.inside} inside, and by {count}{self.between} to each other"


_TUNING = "latency: NCCL's tuning.cc, ring, Simple protocol"
_TCP = "line rate less a tenth for headers; latency assumed, as of TCP through the kernel, 20 to 50 us"


def _named(name: str, latency_us: float, gigabytes_per_s: float, note: str) -> Link:
    return Link(name=name, latency_s=1e-6 * latency_us, bytes_per_s=1e9 * gigabytes_per_s, note=note)


LINKS: Mapping[str, Link] = {
    link.name: link
    for link in (
        _named("nvlink4", 3.4, 360.0, f"H100 SXM; 450 GB/s each way by data sheet, 80 % of it in rings; {_TUNING}"),
        _named("nvlink3", 3.4, 235.0, f"A100 SXM; 300 GB/s by data sheet, nccl-tests reports 230 to 250; {_TUNING}"),
        _named("pcie5", 5.7, 40.0, f"x16; nccl-tests reports 35 to 45 on 8 cards; {_TUNING}"),
        _named("pcie4", 5.7, 20.0, f"x16, 32 GB/s by standard; cards under one switch reach about 20; {_TUNING}"),
        _named("ib400", 14.0, 45.0, f"InfiniBand NDR, 50 GB/s, about 90 % of it in large messages; {_TUNING}"),
        _named("ib200", 14.0, 22.5, f"InfiniBand HDR, 25 GB/s, about 90 %; {_TUNING}"),
        _named("ib100", 14.0, 11.2, f"InfiniBand EDR, 12.5 GB/s, about 90 %; {_TUNING}"),
        _named("eth100", 30.0, 9.0, "Ethernet by TCP with several sockets; one socket reaches 3 to 5"),
        _named("eth25", 30.0, 2.8, _TCP),
        _named("eth10", 30.0, 1.12, _TCP),
        _named("eth1", 50.0, 0.112, _TCP),
    )
}
"""Links by name. These are assumptions; `measure.py` measures a real link."""


USUAL_LINK = "ib200"
"""The default link."""


def link_of(text: str, option: str = "--link") -> Link:
    """The link of this name, or of a JSON file that `measure.py` wrote.

    Raises ValueError for neither, naming names near it, and for a file that holds no link.
    """
    if text in LINKS:
        return LINKS[text]
    path = expanded(text)
    if path.suffix == ".json" or path.is_file():
        return read_link(path)
    near = difflib.get_close_matches(text.lower(), LINKS, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}? There are {', '.join(LINKS)}" if near else f"there are {', '.join(LINKS)}"
    raise ValueError(f"{option} {text}: no such link; {hint}, or name a JSON file with a measured one")


def read_link(path: Path) -> Link:
    """A measured link. Raises ValueError naming the file and the field."""
    try:
        fields = mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: can't be read as a link ({error}); `measure.py` writes one") from None
    return Link(
        name=str(fields.get("name") or path.stem),
        latency_s=_at_least(path, fields, "latency_s", 0.0),
        bytes_per_s=_at_least(path, fields, "bytes_per_s", 1.0),
        latency_error=_at_least(path, fields, "latency_error", 0.0, 0.1),
        bandwidth_error=_at_least(path, fields, "bandwidth_error", 0.0, 0.1),
        trees=fields.get("trees") is not False,
        note=str(fields.get("note") or f"measured, {path.name}"),
    )


def _at_least(path: Path, fields: dict[str, Any], field: str, least: float, default: float | None = None) -> float:
    value = number(fields.get(field)) if field in fields or default is None else default
    if value is None or not math.isfinite(value) or value < least:
        raise ValueError(f"{path}: {field} must be a number of at least {least:g} (it is {fields.get(field)!r})")
    return value
