"""Imitates scripts for multi-channel tumour segmentation derived from a 3-D notebook: four modalities in one
NIfTI file, labels turned to three regions, a cache on disk, mixed precision, reproducible seeds."""
# verdict: sync|compute

import gc
import json
import time

import nibabel as nib
import numpy as np
import torch
from common import device, folder, volume
from monai.data import DataLoader, PersistentDataset, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import SegResNet
from monai.transforms import (
    Activations,
    AsDiscrete,
    Compose,
    ConvertToMultiChannelBasedOnBratsClassesd,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    RandFlipd,
    RandShiftIntensityd,
    RandSpatialCropd,
    Spacingd,
)
from monai.utils import set_determinism

CONFIG = {"epochs": 20, "batch_size": 1, "roi": (32, 32, 32), "lr": 1e-4, "val_every": 5, "workers": 0}
set_determinism(seed=0)  # label: deterministic gpu likely
out_dir = folder("glioma-out")
amp = device.type == "cuda"


def make_data(count=14, shape=(80, 80, 64)):
    root, items = folder("glioma"), []
    random = np.random.default_rng(3)
    for n in range(count):
        images, seg = zip(*(volume(random, shape) for _ in range(4)), strict=True)
        label = seg[0] * random.integers(1, 4, shape)
        nib.save(nib.Nifti1Image(np.stack(images, -1), np.eye(4)), root / f"BRATS_{n:03d}.nii.gz")
        nib.save(nib.Nifti1Image(label.astype(np.uint8), np.eye(4)), root / f"BRATS_{n:03d}_seg.nii.gz")
        items.append({"image": str(root / f"BRATS_{n:03d}.nii.gz"), "label": str(root / f"BRATS_{n:03d}_seg.nii.gz")})
    return items[:-2], items[-2:]


deterministic_part = [
    LoadImaged(keys=["image", "label"]),
    EnsureChannelFirstd(keys="image"),
    EnsureTyped(keys=["image", "label"]),
    ConvertToMultiChannelBasedOnBratsClassesd(keys="label"),
    Orientationd(keys=["image", "label"], axcodes="RAS", labels=None),
    Spacingd(keys=["image", "label"], pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest")),
]
normalize = NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True)
train_transform = Compose(
    [
        *deterministic_part,
        RandSpatialCropd(keys=["image", "label"], roi_size=CONFIG["roi"], random_size=False),
        RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
        RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=1),
        normalize,
        RandShiftIntensityd(keys="image", offsets=0.1, prob=1.0),
    ]
)
val_transform = Compose([*deterministic_part, normalize])

train_files, val_files = make_data()
cache = folder("glioma-cache")
# label: uncached-items both maybe
train_ds = PersistentDataset(train_files, transform=train_transform, cache_dir=cache / "train")
val_ds = PersistentDataset(val_files, transform=val_transform, cache_dir=cache / "val")
# label: no-workers gpu sure; no-workers cpu likely; unpinned-memory gpu maybe; small-batch gpu likely
train_loader = DataLoader(train_ds, batch_size=CONFIG["batch_size"], shuffle=True, num_workers=CONFIG["workers"])
val_loader = DataLoader(val_ds, batch_size=1, shuffle=False, num_workers=CONFIG["workers"])

# label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
model = SegResNet(
    blocks_down=[1, 2, 2], blocks_up=[1, 1], init_filters=8, in_channels=4, out_channels=3, dropout_prob=0.2
).to(device)  # fmt: skip
loss_function = DiceLoss(smooth_nr=0, smooth_dr=1e-5, squared_pred=True, to_onehot_y=False, sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), CONFIG["lr"], weight_decay=1e-5)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=CONFIG["epochs"])
dice_metric = DiceMetric(include_background=True, reduction="mean")
post_trans = Compose([Activations(sigmoid=True), AsDiscrete(threshold=0.5)])
scaler = torch.amp.GradScaler("cuda", enabled=amp)


def inference(x):
    with torch.autocast(device.type, enabled=amp):
        return sliding_window_inference(x, CONFIG["roi"], 2, model, overlap=0.25)


log, best = [], -1.0
for epoch in range(CONFIG["epochs"]):
    model.train()
    epoch_loss = 0.0
    for step, batch in enumerate(train_loader, 1):
        step_start = time.time()
        inputs, labels = batch["image"].to(device), batch["label"].to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, enabled=amp):
            loss = loss_function(model(inputs), labels)  # label: metadata-tensor both likely
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        epoch_loss += loss.item()  # label: host-read gpu likely
        print(f"{step}/{len(train_loader)}, train_loss: {loss.item():.4f}, step time: {time.time() - step_start:.4f}")
        gc.collect()  # label: gc-collect both sure
        torch.cuda.empty_cache()  # label: empty-cache gpu sure
    scheduler.step()
    log.append({"epoch": epoch, "loss": epoch_loss / len(train_loader)})
    if (epoch + 1) % CONFIG["val_every"] == 0:
        model.eval()
        with torch.no_grad():
            for batch in val_loader:
                outputs = [post_trans(i) for i in decollate_batch(inference(batch["image"].to(device)))]
                dice_metric(y_pred=outputs, y=batch["label"].to(device))
        log[-1]["dice"] = dice_metric.aggregate().item()
        dice_metric.reset()
        if log[-1]["dice"] > best:
            best = log[-1]["dice"]
            torch.save(model.state_dict(), out_dir / "best.pth")
    (out_dir / "log.json").write_text(json.dumps(log))
