"""What a part of `benchmarks.cache` hands back, and how it runs work in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Claim

SPACING = (2.5, 1.5, 1.5)


@dataclass(frozen=True, slots=True)
class Outcome:
    results: dict[str, list[float]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def command(module: str, *words: str | Path | float) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.caches.{module}", *map(str, words)]


def child(module: str, *words: str | Path | float) -> dict[str, Any]:
    """Run a module of this folder in a process of its own and return the object that it prints last."""
    done = subprocess.run(command(module, *words), cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(f"{module} {words} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
