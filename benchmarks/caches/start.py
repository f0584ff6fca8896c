"""Second start: seconds from opening to the first training batch, in a new process with warm files.

Hasten lists the cases, opens its arena from the file and makes a batch of four crops, without augmentation, as there is
none in what is compared. MONAI's PersistentDataset, filled before, goes
through its first epoch, item by item: `monai_first_epoch` is what a run waits for before its loader is as fast as
memory; `monai_first_batch` is four items of it, what a run waits for before its first step. `hasten_first_epoch` is
Hasten's own PersistentDataset with the same transforms, every byte read. Imports are not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.caches.outcome import SPACING, Outcome, own_arena
from benchmarks.harness import Claim, in_child, interleave, median_ratio


def measure(data: Path, folder: Path, rounds: int, quick: bool) -> Outcome:
    for worker in WORKERS:
        in_child("benchmarks.caches.start", worker, data, folder / worker.partition(" ")[0])  # fills
    arms: dict[str, Callable[[], float]] = {
        f"start/{worker.replace(' ', '_')}_s": lambda worker=worker: in_child(  # type: ignore[misc]
            "benchmarks.caches.start", worker, data, folder / worker.partition(" ")[0]
        )["seconds"]
        for worker in WORKERS
    }
    results = interleave(arms, rounds, warmup=0)
    first = results["start/arena_s"]
    claims = [
        Claim.at_most("second start: seconds from opening the arena to the first batch", sorted(first)[rounds // 2], 1),
        Claim.at_least(
            "second start: the warm first epoch of MONAI's PersistentDataset takes this many times that",
            median_ratio(results["start/monai_epoch_s"], first),
            50,
        ),
        Claim.at_least(
            "second start: that epoch takes this many times the one of Hasten's PersistentDataset",
            median_ratio(results["start/monai_epoch_s"], results["start/own_epoch_s"]),
            2,
        ),
    ]
    return Outcome(results, claims)


def arena(data: Path, cache: Path) -> Callable[[], object]:
    from benchmarks.feeds import default_program
    from hasten.config.schema import SampleConfig

    off = {f"{name}_prob": 0.0 for name in ("affine", "brightness", "contrast", "gamma", "noise")}
    sample = SampleConfig(patch=(32, 80, 80), batch_size=4, flip_prob=(0.0, 0.0, 0.0), **off)

    def once() -> object:
        return default_program(own_arena(data, cache, home="file"), sample, spacing=SPACING)(0)

    return once


def dataset(kind: str, data: Path, cache: Path) -> Any:
    from monai.data import PersistentDataset as Theirs
    from monai.transforms import Compose

    from benchmarks.ladder.chain import deterministic
    from benchmarks.tasks import bench_task, rows_of_all
    from hasten.monai.persistent import PersistentDataset

    task = bench_task(data, "ct", spacing=SPACING)
    kinds: dict[str, Any] = {"monai": Theirs, "own": PersistentDataset}
    return kinds[kind](rows_of_all(task), Compose(deterministic(task)), cache)


def through(kind: str, data: Path, cache: Path, count: int | None) -> Callable[[], object]:
    import torch

    def once() -> object:
        items = dataset(kind, data, cache)
        # Every byte is read: an item that is only mapped has cost nothing yet.
        return [
            sum(torch.as_tensor(item[key]).sum() for key in ("image", "label"))
            for item in (items[number] for number in range(min(count or len(items), len(items))))
        ]

    return once


WORKERS: dict[str, Callable[[Path, Path], Callable[[], object]]] = {
    "arena": arena,
    "monai epoch": lambda data, cache: through("monai", data, cache, None),
    "monai batch": lambda data, cache: through("monai", data, cache, 4),
    "own epoch": lambda data, cache: through("own", data, cache, None),
}


def main() -> None:
    worker, data, cache = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    # Everything that the arms import, so that none of it is counted.

    if worker != "arena":
        import monai.data
        import monai.transforms  # noqa: F401
    once = WORKERS[worker](data, cache)
    begin = time.perf_counter()
    once()
    print(json.dumps({"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
