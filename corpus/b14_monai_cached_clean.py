"""Imitates a tuned 3-D training script of the fast-training kind: everything deterministic cached in memory,
plain tensors, persistent workers, mixed precision, pinned memory, asynchronous copies, the loss read once an epoch."""
# control
# verdict: compute

import argparse

import nibabel as nib
import numpy as np
import torch
from common import UNet, device, folder, volume
from monai.data import CacheDataset, DataLoader, set_track_meta
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    Orientationd,
    RandFlipd,
    RandShiftIntensityd,
    RandSpatialCropd,
    ScaleIntensityRanged,
    Spacingd,
)
from torch.nn.functional import one_hot

cuda = device.type == "cuda"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8 if cuda else 4)
    parser.add_argument("--workers", type=int, default=4 if cuda else 1)
    parser.add_argument("--patch", type=int, default=96 if cuda else 32)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256] if cuda else [8, 16, 32])
    parser.add_argument("--val-every", type=int, default=20)
    return parser.parse_args()


def prepare(count=66, side=112):
    path, random, files = folder("tuned"), np.random.default_rng(1), []
    for n in range(count):
        image, label = volume(random, (side, side, side) if cuda else (56, 56, 48))
        nib.save(nib.Nifti1Image(200 * image, np.diag([1.0, 1.0, 1.2, 1.0])), path / f"ct_{n:02d}.nii")
        nib.save(nib.Nifti1Image(label, np.diag([1.0, 1.0, 1.2, 1.0])), path / f"seg_{n:02d}.nii")
        files.append({"image": path / f"ct_{n:02d}.nii", "label": path / f"seg_{n:02d}.nii"})
    return files[:-2], files[-2:]


def datasets(patch):
    both = ["image", "label"]
    fixed = [
        LoadImaged(keys=both),
        EnsureChannelFirstd(keys=both),
        Orientationd(keys=both, axcodes="RAS", labels=None),
        Spacingd(keys=both, pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest")),
        ScaleIntensityRanged(keys="image", a_min=-400, a_max=800, b_min=0, b_max=1, clip=True),
        EnsureTyped(keys=both, dtype=(torch.float32, torch.uint8), track_meta=False),
    ]
    drawn = [
        RandSpatialCropd(keys=both, roi_size=(patch,) * 3, random_size=False),
        RandFlipd(keys=both, prob=0.5, spatial_axis=0),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=0.5),
    ]
    train_files, val_files = prepare()
    train_ds = CacheDataset(train_files, Compose([*fixed, *drawn]), cache_rate=1.0, num_workers=2, progress=False)
    val_ds = CacheDataset(val_files, Compose(fixed), cache_rate=1.0, num_workers=2, progress=False)
    return train_ds, val_ds


def main():
    args = parse()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    train_ds, val_ds = datasets(args.patch)
    set_track_meta(False)
    train_loader = DataLoader(
        train_ds, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers,
        persistent_workers=True, prefetch_factor=4, pin_memory=cuda,
    )  # fmt: skip
    val_loader = DataLoader(val_ds, batch_size=1, num_workers=0)
    model = UNet(3, 1, 2, widths=tuple(args.widths)).to(device, memory_format=torch.channels_last_3d if cuda else None)
    criterion = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    scaler = torch.amp.GradScaler(device.type, enabled=cuda)
    metric = DiceMetric(include_background=False)
    kept, best = folder("tuned-model"), 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        summed = torch.zeros((), device=device)
        for batch in train_loader:
            image = batch["image"].to(device, non_blocking=True)
            label = batch["label"].to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, enabled=cuda):
                loss = criterion(model(image), label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            summed += loss.detach()
        print(f"epoch {epoch}: loss {summed.item() / len(train_loader):.4f}")
        if epoch % args.val_every == 0:
            model.eval()
            with torch.inference_mode(), torch.autocast(device.type, enabled=cuda):
                for batch in val_loader:
                    image, label = batch["image"].to(device), batch["label"].to(device)
                    scores = sliding_window_inference(image, (args.patch,) * 3, 4, model)
                    found = one_hot(scores.argmax(1), 2).movedim(-1, 1)
                    metric(y_pred=found, y=one_hot(label[:, 0].long(), 2).movedim(-1, 1))
            dice = metric.aggregate().item()
            metric.reset()
            print(f"epoch {epoch}: dice {dice:.4f}")
            if dice > best:
                best = dice
                torch.save(model.state_dict(), kept / "best.pt")


if __name__ == "__main__":
    main()
