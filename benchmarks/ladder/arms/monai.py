"""MONAI as its fast training tutorial has it, from the regular arm up to the fast one, one rung at a time.

Project-MONAI/tutorials, acceleration/fast_training_tutorial.ipynb: the same transforms in the same order, crops half
about foreground from precomputed indices, Adam at 2e-4 and Dice below, DiceCE and SGD at 0.2 at the top. What differs
from it, and why, is in docs/ladder.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.ladder.record import Record, arm_parser, to_arguments
from benchmarks.ladder.rungs import RUNGS
from hasten.observe.clock import process_start_seconds

NAMES = tuple(rung.name for rung in RUNGS if rung.module == "monai")


def main(argv: Sequence[str] | None = None) -> None:
    parser = arm_parser(str(__doc__).splitlines()[0])
    parser.add_argument("--rung", choices=NAMES, default=NAMES[-1])
    parser.add_argument("--autotune", action="store_true", help="let cuDNN time its algorithms instead of the "
                        "deterministic ones that the tutorial's set_determinism asks for")  # fmt: skip
    flags = parser.parse_args(argv)
    record = Record(arm=flags.rung, given=to_arguments(flags), notes=str(__doc__))
    has = NAMES.index(flags.rung)
    cached, threaded, amp, on_device, fast = (has >= level for level in range(1, len(NAMES)))
    task = record.given.task

    import torch
    from monai.data import set_track_meta

    from benchmarks.ladder.algorithms import fast_loss, fast_optimizer, regular_loss, regular_optimizer
    from benchmarks.ladder.chain import network_of, turned
    from benchmarks.ladder.loop import Arm, may_autocast, run, set_up

    device = set_up(record)
    if flags.autotune:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    set_track_meta(True)
    chains = _chains(record, device if on_device else None)
    record.seconds["import"] = process_start_seconds()

    start = time.perf_counter()
    loaders = _loaders(record, chains, cached=cached, threaded=threaded)
    if on_device:
        set_track_meta(False)
    record.seconds["cache"] = time.perf_counter() - start if cached else 0.0
    net = network_of(task, xyz=True).to(device)
    arm = Arm(
        task=task,
        net=net,
        loss=fast_loss(task) if fast else regular_loss(task),
        optimizer=fast_optimizer(task, net) if fast else regular_optimizer(task, net),
        train=loaders["train"],
        validation=loaders["validation"],
        roi=turned(task.roi, task.spatial_dims),
        device=device,
        amp=amp and may_autocast(task, device),
    )
    record.settled = {"amp": arm.amp}
    run(arm, record)


def _chains(record: Record, device: Any) -> dict[str, Any]:
    """Of training and validation; with a device, cached cases lie there without metadata."""
    from monai.transforms import Compose, EnsureTyped

    from benchmarks.ladder.chain import KEYS, RegionMasks, deterministic, random_crop

    task = record.given.task
    plain = [] if device is None else [EnsureTyped(KEYS, device=device, track_meta=False)]
    masks = [RegionMasks(task)] if task.regions else []
    return {
        "train": Compose([*deterministic(task, pad=True, indices=True), *masks, *plain, random_crop(task)]),
        "validation": Compose([*deterministic(task), *plain]),
    }


def _loaders(record: Record, chains: dict[str, Any], *, cached: bool, threaded: bool) -> dict[str, Any]:
    from monai.data import CacheDataset, DataLoader, Dataset, ThreadDataLoader

    from benchmarks.ladder.chain import rows_of

    given, task = record.given, record.given.task
    loaders = {}
    for part, cases in (("train", task.train), ("validation", task.validation)):
        data: Any = Dataset(rows_of(cases), chains[part])
        if cached:
            data = CacheDataset(
                rows_of(cases), chains[part], num_workers=given.workers, copy_cache=not threaded, progress=False
            )
        batch = {"batch_size": task.peer.cases, "shuffle": True} if part == "train" else {"batch_size": 1}
        loaders[part] = (
            ThreadDataLoader(data, num_workers=0, **batch)
            if threaded
            else DataLoader(data, num_workers=given.workers, **batch)
        )
    return loaders


if __name__ == "__main__":
    main()
