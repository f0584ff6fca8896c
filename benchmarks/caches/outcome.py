"""What the parts of `benchmarks.cache` hand back, and what they share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim

SPACING = (2.5, 1.5, 1.5)


@dataclass(frozen=True, slots=True)
class Outcome:
    results: dict[str, list[float]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def own_arena(data: Path, cache: Path, **settings: Any) -> Any:
    from benchmarks.tasks import prepare_config
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig

    return get_arena(load_case_set(data), prepare_config("ct", SPACING), CacheConfig(dir=str(cache), **settings))


def forget(folder: Path) -> None:
    """Let the system drop what it keeps of these files in memory, as far as nobody has them open."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
