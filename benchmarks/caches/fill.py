"""Filling: seconds and peak memory of MONAI's CacheDataset and of Hasten's arena.

Every fill is a process of its own with the files in the page cache; imports are not counted. MONAI prepares with all
cores as threads what its fast training tutorial does, with the indices that crops are drawn from; Hasten stores as much
and writes it to its persistent cache besides. Peak memory is the largest resident set of the process. Hasten's then
includes the pages of its cache file that it has mapped, which the system can take back.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.caches.outcome import SPACING, Outcome, own_arena
from benchmarks.harness import Claim, in_child, interleave, median_ratio
from hasten.observe.cores import usable_cores


def measure(data: Path, _: Path, rounds: int, quick: bool) -> Outcome:
    warm_page_cache(data)
    logs: dict[str, list[dict[str, Any]]] = {"monai": [], "hasten": []}
    arms = {arm: partial(filled, arm, data, log) for arm, log in logs.items()}
    seconds = interleave(arms, rounds, warmup=0 if quick else 1)
    peaks = {arm: [each["peak_mib"] for each in log][-rounds:] for arm, log in logs.items()}
    results = {f"fill/{arm}_s": values for arm, values in seconds.items()}
    results |= {f"fill/{arm}_peak_mib": values for arm, values in peaks.items()}
    ratio = median_ratio(seconds["monai"], seconds["hasten"])
    memory = median(peaks["hasten"]) / median(peaks["monai"])
    claims = [
        Claim.at_least("filling: MONAI's CacheDataset takes this many times Hasten's seconds", ratio, 3),
        Claim.at_most("filling: Hasten's peak memory over MONAI's", memory, 1),
    ]
    return Outcome(results, claims, {"last": {arm: log[-1] for arm, log in logs.items()}})


def warm_page_cache(data: Path) -> None:
    for path in data.rglob("*.nii*"):
        path.read_bytes()


def filled(arm: str, data: Path, log: list[dict[str, Any]]) -> float:
    """Seconds of one fill, whose other figures go into the log."""
    figures = in_child("benchmarks.caches.fill", arm, data)
    log.append(figures)
    return figures["seconds"]


def hasten_fill(data: Path, cache: Path) -> tuple[int, int]:
    """Cases and bytes that an arena in an empty cache holds; a run prepares them in the same way."""
    arena = own_arena(data, cache)
    return len(arena.ids), sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


def monai_fill(data: Path, cache: Path) -> tuple[int, int]:
    """Of a CacheDataset, in memory."""
    from monai.data import CacheDataset
    from monai.transforms import Compose, EnsureTyped

    from benchmarks.ladder.chain import deterministic
    from benchmarks.tasks import bench_task, rows_of_all

    task = bench_task(data, "ct", spacing=SPACING)
    chain = Compose([*deterministic(task, indices=True), EnsureTyped(["image", "label"], track_meta=False)])
    cached = CacheDataset(rows_of_all(task), chain, num_workers=usable_cores(), copy_cache=False, progress=False)
    return len(cached), sum(value.nbytes for case in cached for value in case.values() if hasattr(value, "nbytes"))


def main(arm: str, data: Path) -> dict[str, float]:
    """One fill in this process, after its imports."""
    own = ("monai.data", "monai.transforms") if arm == "monai" else ("hasten.cache.build",)
    for name in ("benchmarks.ladder.chain", "benchmarks.tasks", "hasten.cases.sources", *own):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as cache:
        begin = time.perf_counter()
        cases, stored = {"hasten": hasten_fill, "monai": monai_fill}[arm](data, Path(cache))
        seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "cases": cases, "bytes": stored, "peak_mib": peak}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
