"""The regular way, the other half of MONAI's fast training tutorial: every file is read and prepared again each epoch.

From the tutorial: Dataset, DataLoader with worker processes that are started anew each epoch, Adam at 2e-4, Dice loss,
fp32, validation through a DataLoader. Cases, crops, network and validation window are those of `monai_fast`.
"""

from __future__ import annotations

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

LEARNING_RATE = 2e-4


def main(argv: Sequence[str] | None = None) -> None:
    given = arm_arguments(str(__doc__).splitlines()[0], argv)
    record = Record("regular", given, str(__doc__))
    import torch
    from monai.data import DataLoader, Dataset
    from monai.losses import DiceLoss
    from monai.transforms import Compose
    from monai.utils import set_determinism

    from benchmarks.peers.loop import Arm, pick_device, run

    torch.set_num_threads(given.threads)
    given.amp = given.amp or "off"
    given.lr = given.lr or LEARNING_RATE
    set_determinism(given.seed)
    device = pick_device(given.device)
    rows, num_classes = list_cases(given.data)
    parts = read_split(rows, given.split)
    record.sizes = {part: len(cases) for part, cases in parts.items()}
    train = Dataset(parts["train"], Compose([
        *deterministic(given.kind, spacing=given.spacing, pad=given.patch, indices=True),
        random_crop(given.patch, given.samples),
    ]))  # fmt: skip
    held = Dataset(parts["validation"], Compose(deterministic(given.kind, spacing=given.spacing)))
    record.seconds["import"] = since_start()

    net = network(num_classes).to(device)
    arm = Arm(
        net=net,
        loss=DiceLoss(to_onehot_y=True, softmax=True),
        optimizer=torch.optim.Adam(net.parameters(), lr=given.lr),
        train=DataLoader(train, num_workers=given.workers, batch_size=given.cases, shuffle=True),
        validation=DataLoader(held, num_workers=given.workers, batch_size=1),
        num_classes=num_classes,
        device=device,
        amp=given.amp == "on",
    )
    run(arm, record)


if __name__ == "__main__":
    main()
