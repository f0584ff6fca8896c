"""Memory: bytes of a cached voxel, and what several processes take that read one cache.

A reader opens the arena from the file and reads every byte. What it takes is its share of the mapped files (a page that
n processes have mapped counts 1/n to each) and what it allocated since before it opened them; the readers' sum over
that of one alone is how much the second to fourth add. MONAI's bytes are those of the tensors in its CacheDataset,
which each process that builds one has for itself.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from benchmarks.caches.outcome import SPACING, Outcome, own_arena
from benchmarks.harness import ROOT, Claim, in_child

READERS = 4
READ = (sys.executable, "-m", "benchmarks.caches.readers", "read")


def measure(data: Path, folder: Path, rounds: int, quick: bool) -> Outcome:
    own_arena(data, folder / "arena", home="file")
    figures: dict[str, list[float]] = {"readers/one_mib": [], f"readers/{READERS}_mib": []}
    for _ in range(rounds):
        for count, series in zip((1, READERS), figures.values(), strict=True):
            taken, message = together(count, data, folder / "arena")
            series.append(taken / 2**20)
    ratios = [many / one for one, many in zip(*figures.values(), strict=True)]
    monai = in_child("benchmarks.caches.readers", "monai", data, folder)
    own = message["bytes"] / message["voxels"]
    claims = [
        Claim.at_most("bytes in memory per voxel of image and label", own, 3),
        Claim.at_most(f"memory of {READERS} readers over that of one", sorted(ratios)[rounds // 2], 1.1),
    ]
    details = {"hasten_bytes_per_voxel": own, "monai_bytes_per_voxel": monai["bytes"] / monai["voxels"]}
    return Outcome(figures | {f"readers/{READERS}_over_one": ratios}, claims, details)


def together(count: int, data: Path, cache: Path) -> tuple[int, dict[str, Any]]:
    """Bytes that `count` readers take at the same time, and what one of them said."""
    options: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen([*READ, str(data), str(cache)], **options) for _ in range(count)]
    results = [json.loads(reader.stdout.readline()) for reader in readers if reader.stdout is not None]
    total = sum(taken(reader.pid) for reader in readers) - sum(each["before"] for each in results)
    for reader in readers:
        reader.communicate("done\n")
    return total, results[0]


def taken(pid: int | None = None) -> int:
    """Bytes: a process's share of mapped arena files, and everything that it allocated."""
    maps = psutil.Process(pid).memory_maps(grouped=True)
    arena = sum(each.pss for each in maps if each.path.endswith(("image.bin", "label.bin")))
    return int(arena + sum(each.anonymous for each in maps))


def read(data: Path, cache: Path) -> None:
    import hasten.cache.build
    import hasten.cases.sources  # noqa: F401

    before = taken()
    arena = own_arena(data, cache, home="file")
    label = arena.store.values["label"]
    arena.store.values["image"].view(label.dtype).sum()
    label.sum()
    voxels = sum(math.prod(shape) for shape in arena.shapes)
    print(json.dumps({"before": before, "bytes": arena.num_bytes, "voxels": voxels}), flush=True)
    sys.stdin.readline()  # stay, so that all readers are measured together


def monai(data: Path) -> None:
    from monai.data import CacheDataset
    from monai.transforms import Compose

    from benchmarks.ladder.chain import deterministic
    from benchmarks.tasks import bench_task, rows_of_all

    task = bench_task(data, "ct", spacing=SPACING)
    # Four scans tell the bytes of a voxel as well as all do.
    cached = CacheDataset(rows_of_all(task)[:4], Compose(deterministic(task)), progress=False)
    held = sum(value.nbytes for item in cached for value in item.values() if hasattr(value, "nbytes"))
    print(json.dumps({"bytes": held, "voxels": sum(item["label"].numel() for item in cached)}))


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        monai(Path(sys.argv[2]))
