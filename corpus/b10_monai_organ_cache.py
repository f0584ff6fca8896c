"""Imitates the common notebook on CT organ segmentation, turned into a script: cached dictionary transforms,
random positive/negative crops, a residual U-Net, and sliding window inference with the Dice metric every 2nd epoch."""
# verdict: compute

import time

import nibabel as nib
import numpy as np
import torch
from common import device, folder, volume
from monai.config import print_config
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.layers import Norm
from monai.networks.nets import UNet
from monai.transforms import (
    AsDiscrete,
    Compose,
    CropForegroundd,
    EnsureChannelFirstd,
    EnsureType,
    LoadImaged,
    Orientationd,
    RandCropByPosNegLabeld,
    ScaleIntensityRanged,
    Spacingd,
)

print_config()
data_dir = folder("organ")
root_dir = folder("organ-out")
random = np.random.default_rng(0)
data_dicts = []
for n in range(12):
    image, label = volume(random, (88, 88, 56))
    affine = np.diag([1.2, 1.2, 2.2, 1.0])
    nib.save(nib.Nifti1Image(60 * image, affine), data_dir / f"img{n:03d}.nii.gz")
    nib.save(nib.Nifti1Image(label, affine), data_dir / f"label{n:03d}.nii.gz")
    data_dicts.append({"image": str(data_dir / f"img{n:03d}.nii.gz"), "label": str(data_dir / f"label{n:03d}.nii.gz")})
train_files, val_files = data_dicts[:-2], data_dicts[-2:]

shared = [
    LoadImaged(keys=["image", "label"]),
    EnsureChannelFirstd(keys=["image", "label"]),
    ScaleIntensityRanged(keys=["image"], a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True),
    CropForegroundd(keys=["image", "label"], source_key="image"),
    Orientationd(keys=["image", "label"], axcodes="RAS", labels=None),
    Spacingd(keys=["image", "label"], pixdim=(1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
]
crop = RandCropByPosNegLabeld(
    keys=["image", "label"], label_key="label", spatial_size=(48, 48, 48), pos=1, neg=1, num_samples=4,
    image_key="image", image_threshold=0,
)  # fmt: skip
train_transforms = Compose([*shared, crop])
val_transforms = Compose(shared)

train_ds = CacheDataset(data=train_files, transform=train_transforms, cache_rate=1.0, num_workers=2)
# label: no-persistent-workers both sure; unpinned-memory gpu likely; many-workers cores2 likely
train_loader = DataLoader(train_ds, batch_size=2, shuffle=True, num_workers=4)
val_ds = CacheDataset(data=val_files, transform=val_transforms, cache_rate=1.0, num_workers=2)
# label: no-persistent-workers both likely; unpinned-memory gpu maybe; many-workers both likely
val_loader = DataLoader(val_ds, batch_size=1, num_workers=4)

# label: conv-bias-before-norm both likely; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
model = UNet(
    spatial_dims=3, in_channels=1, out_channels=2, channels=(16, 32, 64, 128, 256), strides=(2, 2, 2, 2),
    num_res_units=2, norm=Norm.BATCH,
).to(device)  # fmt: skip
loss_function = DiceLoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
dice_metric = DiceMetric(include_background=False, reduction="mean")
post_pred = Compose([EnsureType(), AsDiscrete(argmax=True, to_onehot=2)])
post_label = Compose([EnsureType(), AsDiscrete(to_onehot=2)])

max_epochs, val_interval = 20, 2
best_metric, best_metric_epoch = -1, -1
epoch_loss_values, metric_values = [], []
for epoch in range(max_epochs):
    print("-" * 10)
    print(f"epoch {epoch + 1}/{max_epochs}")
    model.train()
    epoch_loss, step, begun = 0, 0, time.time()
    for batch_data in train_loader:
        step += 1
        inputs, labels = batch_data["image"].to(device), batch_data["label"].to(device)
        optimizer.zero_grad()
        # label: no-autocast gpu sure; metadata-tensor both likely
        outputs = model(inputs)
        loss = loss_function(outputs, labels)
        loss.backward()
        optimizer.step()
        # label: host-read gpu likely
        epoch_loss += loss.item()
        # label: host-read gpu maybe
        print(f"{step}/{len(train_ds) // train_loader.batch_size}, train_loss: {loss.item():.4f}")
    epoch_loss /= step
    epoch_loss_values.append(epoch_loss)
    print(f"epoch {epoch + 1} average loss: {epoch_loss:.4f}, {time.time() - begun:.1f} s")

    if (epoch + 1) % val_interval == 0:  # label: validation-share both maybe
        model.eval()
        with torch.no_grad():
            for val_data in val_loader:
                val_inputs, val_labels = val_data["image"].to(device), val_data["label"].to(device)
                val_outputs = sliding_window_inference(val_inputs, (64, 64, 64), 4, model)
                val_outputs = [post_pred(i) for i in decollate_batch(val_outputs)]
                val_labels = [post_label(i) for i in decollate_batch(val_labels)]
                dice_metric(y_pred=val_outputs, y=val_labels)
            metric = dice_metric.aggregate().item()
            dice_metric.reset()
        metric_values.append(metric)
        if metric > best_metric:
            best_metric, best_metric_epoch = metric, epoch + 1
            torch.save(model.state_dict(), root_dir / "best_metric_model.pth")
        print(f"current epoch: {epoch + 1} mean dice: {metric:.4f}, best {best_metric:.4f} at {best_metric_epoch}")
