"""Hasten's arm of `benchmarks.cache_fill`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tasks import prepare_config


def hasten_fill(data: Path, kind: str, spacing: Sequence[float] | None, cache: Path) -> dict[str, Any]:
    """Prepare every case of `data` into an arena in the empty folder `cache`, exactly as a training run would.

    `kind` is "mr" (z-score, spacing as it is) or "ct" (resampled to `spacing` (D, H, W) mm, window -57..164 to 0..1,
    foreground crop). Returns {"seconds": of the fill, without imports, "import_seconds": float, "cases": int,
    "bytes": of what was stored}. Listing the cases, and reading the arena back into memory, are inside the seconds.
    """
    start = time.perf_counter()
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig

    imported = time.perf_counter()
    arena = get_arena(load_case_set(data), prepare_config(kind, spacing), CacheConfig(dir=str(cache)))
    filled = time.perf_counter()
    stored = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    return {
        "seconds": filled - imported,
        "import_seconds": imported - start,
        "cases": len(arena.ids),
        "bytes": stored,
    }
