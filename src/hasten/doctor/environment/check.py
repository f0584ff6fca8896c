"""The result of one check: what was checked, whether it is fine, and what to do if it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]
"""`warn`: may cost time; `bad`: gives wrong numbers or stops training. From the best to the worst."""
AREAS = {
    "versions": "Versions and compiler",
    "conv3d": "3-D convolutions, checked against float64",
    "threads": "Threads and affinity",
    "storage": "Memory and disks",
    "load": "Load by other programs",
}
"""Areas in the order in which they are reported, and their titles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Ready for JSON by `dataclasses.asdict`."""

    area: str
    """A key of AREAS."""
    name: str
    """Short, such as `cuDNN` or `disk of the cache`."""
    level: Level
    message: str
    """What was found, with its numbers."""
    remedy: str = ""
    """A one-line remedy; empty if everything is fine."""


def check(area: str, name: str, message: str, remedy: str = "", *, level: Level = "warn") -> Check:
    """A check that is ok without a remedy, else of this level."""
    return Check(area=area, name=name, level=level if remedy else "ok", message=message, remedy=remedy)
