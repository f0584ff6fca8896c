"""Polyps at three scales a batch; the same batch is copied to the device for each of them."""
# verdict: compute

import numpy as np
import torch
from common import UNet, device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Polyps(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(path).convert("RGB").resize((96, 96), Image.BILINEAR)
        mask = Image.open(path.with_name(f"{path.stem}_mask{path.suffix}")).resize((96, 96))
        image = torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1) / 255)
        return (image - 0.45) / 0.22, torch.from_numpy(np.asarray(mask, np.float32)[None] / 255)


def clamp(optimizer, most):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.data.clamp_(-most, most)


def main():
    paths = write_images(folder("polyps"), 64, (300, 300), "jpg")
    # label: uncached-items both sure; heavy-items both likely; many-workers both likely
    # label: no-persistent-workers both maybe
    loader = DataLoader(Polyps(paths), batch_size=8, shuffle=True, num_workers=2, pin_memory=True)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
    net = UNet(2, 3, 4, (8, 16, 32)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    for epoch in range(4):
        meter = []
        for number, (images, masks) in enumerate(loader):
            for side in (64, 96, 128):
                optimizer.zero_grad()
                # label: repeat-work gpu sure; recreate gpu sure; sync-copy gpu sure
                image, mask = images.to(device), masks.to(device)
                image = nn.functional.interpolate(image, size=(side, side), mode="bilinear")
                mask = nn.functional.interpolate(mask, size=(side, side), mode="bilinear")
                losses = [
                    nn.functional.binary_cross_entropy_with_logits(each[:, None], mask) for each in net(image).unbind(1)
                ]
                loss = sum(losses)
                loss.backward()
                clamp(optimizer, 0.5)
                optimizer.step()
                if side == 96:
                    meter.append(loss.detach())
            if number % 20 == 0:
                print(epoch, float(torch.stack(meter).mean()))


if __name__ == "__main__":
    main()
