"""MONAI: cached volumes, positive and negative crops, batches of MetaTensors, whole volumes validated often."""
# verdict: validation|input

import nibabel
import numpy as np
import torch
from common import device, folder, volume
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, EnsureChannelFirstd, LoadImaged, RandCropByPosNegLabeld
from monai.utils import set_determinism


def main():
    set_determinism(0)
    root, random = folder("spleen"), np.random.default_rng(0)
    rows = []
    for number in range(16):
        for key, array in zip(
            ("image", "label"), volume(random, (112, 112, 80) if number < 8 else (64, 64, 48)), strict=True
        ):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), root / f"{number}_{key}.nii")
        rows.append({key: str(root / f"{number}_{key}.nii") for key in ("image", "label")})
    load = [LoadImaged(("image", "label")), EnsureChannelFirstd(("image", "label"))]
    crop = RandCropByPosNegLabeld(("image", "label"), "label", (24, 24, 24), pos=1, neg=1, num_samples=4)
    dataset = CacheDataset(rows[:8], Compose([*load, crop]), progress=False)
    # label: no-persistent-workers both sure; uncached-items both sure; uncached-transforms both maybe
    # label: heavy-items both likely; unpinned-memory gpu sure; many-workers both maybe
    loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=2)
    held = DataLoader(CacheDataset(rows[8:], Compose(load), progress=False), batch_size=1)
    # label: metadata-tensor both sure; conv-bias-before-norm both sure; no-autocast gpu sure
    # label: cudnn-benchmark-off gpu sure; deterministic gpu maybe
    net = UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=1, norm="batch").to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    lose, metric, discrete = (
        DiceLoss(to_onehot_y=True, softmax=True),
        DiceMetric(include_background=False),
        AsDiscrete(argmax=True, to_onehot=2),
    )
    for epoch in range(12):
        total = 0.0
        for batch in loader:
            image, label = batch["image"].to(device), batch["label"].to(device)
            optimizer.zero_grad()
            loss = lose(net(image), label)  # label: metadata-tensor both sure
            loss.backward()
            optimizer.step()
            total += loss.item()  # label: host-read gpu sure
            print(f"{epoch} {loss.item():.3f}")  # label: host-read gpu sure
        if epoch % 2:
            net.eval()  # label: validation-share both sure
            with torch.no_grad():
                for batch in held:
                    # label: validation-share both sure
                    scores = sliding_window_inference(batch["image"].to(device), (48, 48, 48), 4, net)
                    metric([discrete(each) for each in decollate_batch(scores)], decollate_batch(batch["label"]))
            print(metric.aggregate().item())
            metric.reset()
            net.train()  # label: validation-share both sure


if __name__ == "__main__":
    main()
