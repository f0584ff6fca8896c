"""What kernels move, and the budget of what they may."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_BUDGET = Path(__file__).with_name("budget.json")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one rendered batch."""

    launches: int
    """Kernels that are started, those of torch's libraries among them."""
    volumes: int
    """Of these, kernels that read or write something as large as a volume."""
    batches: float
    """Bytes that kernels read and write of what kernels made, over the bytes of the finished batch."""


def over_budget(result: Traffic, allowed: dict[str, float]) -> list[str]:
    """What is above it, in words."""
    values = {name: getattr(result, name) for name in allowed}
    return [f"{name}: {values[name]} above {limit}" for name, limit in allowed.items() if values[name] > limit]


def read_budget(part: str) -> dict[str, dict[str, float]]:
    """Of each chain, by the names of `Traffic`. part: `fused`."""
    budget: dict[str, dict[str, float]] = json.loads(_BUDGET.read_text(encoding="utf-8"))[part]
    return budget


def write_budget(part: str, counts: Mapping[str, Traffic]) -> None:
    """Make these counts the budget of this part."""
    budget = json.loads(_BUDGET.read_text(encoding="utf-8"))
    budget[part] = {name: asdict(each) for name, each in counts.items()}
    _BUDGET.write_text(json.dumps(budget, indent=2) + "\n", encoding="utf-8")
