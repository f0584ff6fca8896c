"""Hasten's arm of `benchmarks.cache_fill`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def hasten_fill(data: Path, kind: str, spacing: Sequence[float] | None, cache: Path) -> dict[str, Any]:
    """Prepare every case of `data` into an arena in the empty folder `cache`, exactly as a training run would.

    `kind` is "mr" (z-score, spacing as it is) or "ct" (resampled to `spacing` (D, H, W) mm, window -57..164 to 0..1,
    foreground crop). Returns {"seconds": of the fill, without imports, "cases": int, "bytes": of what was stored}.
    """
    raise NotImplementedError("Hasten's fill is not written yet: name the other arms with --arms")
