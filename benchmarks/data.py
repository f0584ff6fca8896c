"""Phantoms for benchmarks that need larger volumes than the real data has, or that run where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SMALL = {"shape": (36, 52, 36), "spacing": (1.0, 1.0, 1.0)}
"""(D, H, W) of a hippocampus crop."""
CT = {"shape": (96, 512, 512), "spacing": (2.5, 0.8, 0.8)}
"""(D, H, W) of a scan of the upper abdomen, and mm."""
QUICK_CT = {"shape": (24, 128, 128), "spacing": (10.0, 3.2, 3.2)}


def phantoms(folder: Path, count: int, size: Mapping[str, Any]) -> Path:
    """Write `count` labelled phantoms of one of the sizes above as a Decathlon folder and return it."""
    from hasten.phantoms.organs import write_phantoms

    return write_phantoms(folder, num_cases=count, **size)
