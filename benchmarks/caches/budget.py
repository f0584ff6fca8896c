"""A data set larger than memory: samples a second over the share of it that host memory may hold.

The scans, prepared at their own spacing within the slice (2.5x0.8x0.8 mm), are trained on with `cache.ram` set to a
share of the arena, each run in a process of its own and in a memory control group whose limit is what a run with all
of it needs besides the arena, plus that share: what the system would like to keep beyond the budget it has to give up.
The files are dropped from the page cache first. `train`: steps of the network that all benchmarks share on 8 patches of
40x56x40 voxels with full augmentation; `feed`: the batches alone. Shares take turns over the rounds.

Without the right to make a control group (root, cgroup v1 or v2) nothing would enforce the budget, so that nothing is
measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.caches.outcome import Outcome, forget
from benchmarks.harness import Claim, in_child, interleave

SHARES = (1.0, 0.75, 0.5, 0.33, 0.25, 0.0)
THIRD = 0.33
SPACING = (2.5, 0.8, 0.8)
PATCH, BATCH = (40, 56, 40), 8
SLACK = 64 * 2**20
GROUP = "hasten-benchmark"


def measure(data: Path, folder: Path, rounds: int, quick: bool) -> Outcome:
    cache = folder / "budget"
    whole = in_child("benchmarks.caches.budget", data, cache, 1.0, 0, 2)
    place = control_group()
    if place is None:
        print("budget: no right to make a memory control group, so not measured", flush=True)
        return Outcome(details={"not measured": "no right to make a memory control group"})
    logs: dict[float, list[dict[str, Any]]] = {share: [] for share in SHARES}

    def once(share: float) -> float:
        forget(cache)
        limit = int(1.1 * whole["anonymous"] + share * whole["arena"]) + SLACK
        with limited(place, limit):
            result = in_child("benchmarks.caches.budget", data, cache, share, limit, 4 if quick else 24)
        logs[share].append(result)
        return result["train"]

    train = interleave({f"budget/train_{share:.2f}_samples_per_s": partial(once, share) for share in SHARES}, rounds, 0)
    feed = {f"budget/feed_{share:.2f}_samples_per_s": [each["feed"] for each in log] for share, log in logs.items()}
    rates = {share: median(each["train"] for each in logs[share]) for share in SHARES}
    text = "data three times the RAM budget: share of samples/s lost against all of it in RAM"
    claims = [Claim.at_most(text, 1 - rates[THIRD] / rates[1.0], 0.15)]
    details = {
        "arena_mib": whole["arena"] / 2**20,
        "read_from_disk_mib_per_step": {
            f"{share:.2f}": median(each["read_mib_per_step"] for each in log) for share, log in logs.items()
        },
    }
    return Outcome(train | feed, claims, details)


def control_group() -> Path | None:
    """A memory control group of our own, made if need be; None where we may not."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        place = root / GROUP
        try:
            place.mkdir(exist_ok=True)
        except OSError:
            continue
        if any((place / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
            return place
    return None


@contextlib.contextmanager
def limited(place: Path, limit: int) -> Iterator[None]:
    file = next(place / name for name in ("memory.limit_in_bytes", "memory.max") if (place / name).exists())
    file.write_text(str(limit))
    try:
        yield
    finally:
        file.write_text("-1" if file.name == "memory.limit_in_bytes" else "max")


def run(data: Path, cache: Path, share: float, limit: int, steps: int) -> dict[str, float]:
    """One run. limit: 0 for none. Returns samples a second and what it took."""
    if limit:
        place = control_group()
        assert place is not None
        (place / "cgroup.procs").write_text(str(os.getpid()))

    from benchmarks.feed import make_step
    from benchmarks.feeds import STRENGTHS, default_program, sample_config
    from benchmarks.tasks import prepare_config
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig
    from hasten.feed.feed import Feed

    cases, spec = load_case_set(data), prepare_config("ct", SPACING)
    size = get_arena(cases, spec, CacheConfig(dir=str(cache), home="file")).num_bytes
    arena = get_arena(cases, spec, CacheConfig(dir=str(cache), ram=f"{int(share * size)}B"))
    program = default_program(arena, sample_config(PATCH, BATCH), STRENGTHS)
    step = make_step(argparse.Namespace(device="cpu"), 2)

    def timed(first: int, count: int, work: Any) -> float:
        begin = time.perf_counter()
        for batch in Feed(program, first=first, last=first + count):
            work((batch["image"], batch["label"]))
        return BATCH * count / (time.perf_counter() - begin)

    timed(0, 2, step)
    before = read_bytes()
    train = timed(2, steps, step)
    read = (read_bytes() - before) / 2**20 / steps
    feed = timed(2 + steps, 2 * steps, lambda batch: None)
    return {"train": train, "feed": feed, "arena": size, "anonymous": anonymous(), "read_mib_per_step": read}


def read_bytes() -> int:
    """Bytes that this process had read from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def anonymous() -> int:
    import psutil

    return sum(each.anonymous for each in psutil.Process().memory_maps(grouped=True))


if __name__ == "__main__":
    words = sys.argv
    print(json.dumps(run(Path(words[1]), Path(words[2]), float(words[3]), int(words[4]), int(words[5]))))
