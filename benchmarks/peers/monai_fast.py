"""MONAI as its fast training tutorial advises (Project-MONAI/tutorials, acceleration/fast_training_tutorial.ipynb).

From the tutorial: CacheDataset filled by threads, `copy_cache=False`, tensors without metadata, cached foreground and
background indices, ThreadDataLoader without workers, 4 crops of each case, DiceCE loss with its settings, SGD at 0.2
with momentum 0.9 and weight decay 4e-5 at a constant rate, autocast, cached validation cases.
Ours, as the data is smaller: 2 cases a batch, crops of 32^3, the network that all arms share, validation every epoch
by windows of the crop's size: the tutorial's wider windows score 3 to 10 points lower here in the first epochs, since
instance norm sees other statistics than in training.
Autocast on a CPU is bf16; it was measured faster than fp32 for this network (AMD EPYC, 2 cores, a step of 8 patches,
medians of 6 interleaved steps: 32^3 100 against 127 ms, 40x56x40 228 against 369 ms), hence on by default.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.peers.common import (
    Record,
    arm_arguments,
    deterministic,
    list_cases,
    network,
    random_crop,
    read_split,
    since_start,
)

LEARNING_RATE = 0.2


def main(argv: Sequence[str] | None = None) -> None:
    given = arm_arguments(str(__doc__).splitlines()[0], argv)
    record = Record("monai_fast", given, str(__doc__))
    import torch
    from monai.data import CacheDataset, ThreadDataLoader, set_track_meta
    from monai.losses import DiceCELoss
    from monai.transforms import Compose, EnsureTyped
    from monai.utils import set_determinism

    from benchmarks.peers.loop import Arm, pick_device, run

    torch.set_num_threads(given.threads)
    given.amp = given.amp or "on"
    given.lr = given.lr or LEARNING_RATE
    set_determinism(given.seed)
    set_track_meta(True)
    device = pick_device(given.device)
    rows, num_classes = list_cases(given.data)
    parts = read_split(rows, given.split)
    record.sizes = {part: len(cases) for part, cases in parts.items()}
    plain = EnsureTyped(["image", "label"], device=device, track_meta=False)
    train = [*deterministic(given.kind, spacing=given.spacing, pad=given.patch, indices=True), plain,
             random_crop(given.patch, given.samples)]  # fmt: skip
    held = [*deterministic(given.kind, spacing=given.spacing), plain]
    record.seconds["import"] = since_start()

    start = time.perf_counter()
    cached = {
        part: CacheDataset(cases, Compose(chain), num_workers=given.workers, copy_cache=False, progress=False)
        for part, cases, chain in (("train", parts["train"], train), ("validation", parts["validation"], held))
    }
    set_track_meta(False)
    record.seconds["cache"] = time.perf_counter() - start

    net = network(num_classes).to(device)
    arm = Arm(
        net=net,
        loss=DiceCELoss(
            include_background=False, to_onehot_y=True, softmax=True, squared_pred=True, batch=True,
            smooth_nr=1e-5, smooth_dr=1e-5, lambda_dice=0.5, lambda_ce=0.5,
        ),
        optimizer=torch.optim.SGD(net.parameters(), lr=given.lr, momentum=0.9, weight_decay=4e-5),
        train=ThreadDataLoader(cached["train"], num_workers=0, batch_size=given.cases, shuffle=True),
        validation=ThreadDataLoader(cached["validation"], num_workers=0, batch_size=1),
        num_classes=num_classes,
        device=device,
        amp=given.amp == "on",
    )  # fmt: skip
    run(arm, record)


if __name__ == "__main__":
    main()
