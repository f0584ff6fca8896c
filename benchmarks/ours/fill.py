"""Hasten's arm of `benchmarks.cache_fill`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tasks import prepare_config


def hasten_fill(
    data: Path, kind: str, spacing: Sequence[float] | None, cache: Path, *, lacking: int | None = None
) -> dict[str, Any]:
    """Prepare every case of `data` into an arena in the empty folder `cache`, exactly as a training run would.

    `kind` is "mr" (z-score, spacing as it is) or "ct" (resampled to `spacing` (D, H, W) mm, window -57..164 to 0..1,
    foreground crop). Returns {"seconds": of the fill, without imports, "import_seconds": float, "cases": int,
    "bytes": of what was stored}. Listing the cases, and reading the arena back into memory, are inside the seconds.

    lacking: fill the cache with all but so many of the last cases first, which is not in the seconds.
    """
    start = time.perf_counter()
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig

    prepare, config = prepare_config(kind, spacing), CacheConfig(dir=str(cache))
    imported = begin = time.perf_counter()
    if lacking is not None:
        cases = load_case_set(data)
        get_arena(dataclasses.replace(cases, cases=cases.cases[:-lacking]), prepare, config)
        begin = time.perf_counter()
    arena = get_arena(load_case_set(data), prepare, config)
    filled = time.perf_counter()
    stored = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    return {
        "seconds": filled - begin,
        "import_seconds": imported - start,
        "cases": len(arena.ids),
        "bytes": stored,
    }
