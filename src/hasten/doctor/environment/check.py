"""The result of one check: what was checked, whether it is fine, and what to do if it is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]
"""`warn`: may cost time; `bad`: gives wrong numbers or stops training."""

AREAS = {
    "versions": "Versions",
    "compiler": "Compiler",
    "conv3d": "3-D convolutions, timed and checked against float64",
    "rates": "Rates",
    "threads": "Threads and affinity",
    "homes": "Free memory on every home",
    "load": "Load by other programs",
}
"""Areas in the order in which they are reported, and their titles."""

_ORDER: tuple[Level, ...] = ("ok", "warn", "bad")


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Ready for JSON by `dataclasses.asdict`."""

    area: str
    """A key of AREAS."""
    name: str
    """Short, such as `cuDNN` or `disk of the cache`."""
    level: Level = "ok"
    message: str
    """What was found, with its numbers."""
    remedy: str = ""
    """A one-line remedy; empty if everything is fine."""

    def __post_init__(self) -> None:
        assert self.area in AREAS
        assert self.level == "ok" or self.remedy, f"{self.name}: what is not well needs a remedy"


def check(area: str, name: str, message: str, remedy: str = "", *, level: Level = "warn") -> Check:
    """A check that is ok without a remedy, else of this level."""
    return Check(area=area, name=name, level=level if remedy else "ok", message=message, remedy=remedy)


def worst(checks: Iterable[Check]) -> Level:
    """The worst level of the checks; ok if there are none."""
    return max((check.level for check in checks), key=_ORDER.index, default="ok")
