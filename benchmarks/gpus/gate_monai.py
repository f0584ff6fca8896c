"""MONAI's own gate of training speed, as its test_integration_fast_train.py trains: `--data DIR --out FILE`.

Same transforms in the same order, CacheDataset with 8 threads, ThreadDataLoader, tensors on the GPU, 4 cases and 4
crops of 64^3 a batch, UNet 16..256 with batch norm, DiceCE, Novograd at 2e-3, fp16, windows of 96^3 after every epoch.
What it prints at each step is left out. Both means of Dice are written: MONAI's, with the background, and the
foreground's alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.observe.clock import process_start_seconds
from hasten.observe.rundir import write_json

KEYS = ["image", "label"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with imagesTr and labelsTr")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=32, help="the first so many cases train, the others validate")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.95, help="told in the file; all epochs are trained")
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--window", type=int, default=96)
    parser.add_argument("--device", default="cuda")
    train(parser.parse_args(argv))


def rows_of(data: Path) -> list[dict[str, str]]:
    return [{"image": str(path), "label": str(data / "labelsTr" / path.name)}
            for path in sorted((data / "imagesTr").glob("*.nii.gz"))]  # fmt: skip


def deterministic() -> list[Any]:
    from monai import transforms as mt

    return [
        mt.LoadImaged(KEYS),
        mt.EnsureChannelFirstd(KEYS),
        mt.Spacingd(KEYS, pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest")),
        mt.ScaleIntensityd("image"),
        mt.CropForegroundd(KEYS, source_key="image"),
    ]


def random_part(crop: int) -> list[Any]:
    import numpy as np
    from monai import transforms as mt

    modes = ("bilinear", "nearest")
    return [
        mt.RandCropByPosNegLabeld(
            KEYS, label_key="label", spatial_size=(crop,) * 3, pos=1, neg=1, num_samples=4, fg_indices_key="label_fg",
            bg_indices_key="label_bg",
        ),
        mt.RandFlipd(KEYS, prob=0.5, spatial_axis=[1, 2]),
        mt.RandAxisFlipd(KEYS, prob=0.5),
        mt.RandRotate90d(KEYS, prob=0.5, spatial_axes=(1, 2)),
        mt.RandZoomd(KEYS, prob=0.5, min_zoom=0.8, max_zoom=1.2, keep_size=True),
        mt.RandRotated(KEYS, prob=0.5, range_x=math.pi / 4, mode=modes, align_corners=True, dtype=np.float64),
        mt.RandAffined(KEYS, prob=0.5, rotate_range=math.pi / 2, mode=modes),
        mt.RandGaussianNoised("image", prob=0.5),
        mt.RandStdShiftIntensityd("image", prob=0.5, factors=0.05, nonzero=True),
    ]  # fmt: skip


def train(given: argparse.Namespace) -> None:
    import torch
    from monai.data import CacheDataset, ThreadDataLoader
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet
    from monai.optimizers import Novograd
    from monai.transforms import Compose, FgBgToIndicesd, ToDeviced
    from monai.utils import set_determinism

    set_determinism(given.seed)
    device, rows = torch.device(given.device), rows_of(given.data)
    move = ToDeviced(KEYS, device=device)
    indices = FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg")
    chain = Compose([*deterministic(), indices, move, *random_part(given.crop)])
    seconds = {"import": process_start_seconds()}
    cached = CacheDataset(rows[: given.train], chain, num_workers=8, progress=False)
    held = CacheDataset(rows[given.train :], Compose([*deterministic(), move]), runtime_cache=True)
    seconds["cache"] = process_start_seconds() - seconds["import"]
    batches = ThreadDataLoader(cached, num_workers=0, batch_size=4, shuffle=True)
    validation = ThreadDataLoader(held, num_workers=0, batch_size=1)
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True, squared_pred=True, batch=True)
    network = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(16, 32, 64, 128, 256),
                   strides=(2, 2, 2, 2), num_res_units=2, norm="batch").to(device)  # fmt: skip
    optimizer = Novograd(network.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    curve: list[dict[str, Any]] = []
    epochs: list[float] = []
    for epoch in range(1, given.epochs + 1):
        network.train()
        begun, total = process_start_seconds(), 0.0
        for batch in batches:
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = loss_function(network(batch["image"]), batch["label"])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        trained = process_start_seconds() - begun
        dice = validate(network, validation, given.window, device)
        curve.append({"epoch": epoch, "seconds": process_start_seconds(), "loss": total / len(batches), **dice})
        epochs.append(trained)
        write_json(given.out, result(given, curve, epochs, seconds))


def result(
    given: argparse.Namespace, curve: list[dict[str, Any]], epochs: list[float], seconds: dict[str, float]
) -> dict[str, Any]:
    """As the ladder's arms write theirs."""
    return {
        "curve": curve,
        "best": max(point["dice"] for point in curve),
        "seconds": seconds | {"total": process_start_seconds()},
        "seconds_per_epoch": epochs,
        "stopped": "max_epochs" if len(epochs) == given.epochs else None,
        "settings": {"metric": "dice", "target": given.target},
    }


def validate(network: Any, validation: Any, window: int, device: Any) -> dict[str, float]:
    import torch
    from monai.data import decollate_batch
    from monai.inferers import sliding_window_inference
    from monai.metrics import DiceMetric
    from monai.transforms import AsDiscrete

    metric = DiceMetric(include_background=True, reduction="mean_batch")
    predicted, labelled = AsDiscrete(argmax=True, to_onehot=2), AsDiscrete(to_onehot=2)
    network.eval()
    with torch.no_grad():
        for batch in validation:
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                output = sliding_window_inference(batch["image"], (window,) * 3, 4, network)
            metric(
                y_pred=[predicted(each) for each in decollate_batch(output)],
                y=[labelled(each) for each in decollate_batch(batch["label"])],
            )
    background, foreground = metric.aggregate().tolist()
    return {"dice_with_background": (background + foreground) / 2, "dice": foreground}


if __name__ == "__main__":
    main()
