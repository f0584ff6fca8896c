"""2-D U-Net on photographs: five validations per epoch, each with histograms of all weights and gradients."""
# verdict: compute

import json
import os
from pathlib import Path

import numpy as np
import torch
from common import UNet, device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    def __init__(self, root):
        self.root, self.names = root, sorted(p.stem for p in root.glob("*.png") if "mask" not in p.stem)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        image = Image.open(next(self.root.glob(self.names[index] + ".png")))
        mask = Image.open(next(self.root.glob(self.names[index] + "_mask.png")))
        size = (image.width // 5, image.height // 5)
        image = np.asarray(image.resize(size, Image.BICUBIC), np.float32).transpose(2, 0, 1) / 255
        mask, mapped = np.asarray(mask.resize(size, Image.NEAREST)), np.zeros(size[::-1], np.int64)
        for number, value in enumerate((0, 255)):
            mapped[mask == value] = number
        return {"image": torch.from_numpy(image.copy()), "mask": torch.from_numpy(mapped)}


class Tracker:
    def __init__(self, path):
        self.file = path.open("w")

    def log(self, values):
        self.file.write(json.dumps(values) + "\n")


def histogram(tensor):
    return [each.tolist() for each in np.histogram(tensor.cpu().numpy(), 64)]  # label: histograms both sure


def evaluate(net, loader):
    net.eval()  # label: validation-share both likely
    with torch.no_grad():
        for batch in loader:
            mask = batch["mask"].to(device)
            assert mask.min() >= 0 and mask.max() <= 1  # label: host-read gpu sure  # noqa: PT018
            net(batch["image"].to(device)).argmax(1)  # label: validation-share both likely
    net.train()


def train():
    root = Path(folder("photographs"))
    write_images(root, 54, (480, 320))
    whole = Photographs(root)
    train_set, held = torch.utils.data.random_split(whole, [48, 6])
    workers = os.cpu_count()
    # label: uncached-items both sure; heavy-items both likely; small-batch both likely; many-workers cpu likely
    loader = DataLoader(train_set, batch_size=1, shuffle=True, num_workers=workers, pin_memory=True)
    held = DataLoader(held, batch_size=1, num_workers=0, pin_memory=True)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = UNet(2, 3, 2, (8, 16, 32)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-5, foreach=True)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    tracker, step = Tracker(root / "log.json"), 0
    for _ in range(2):
        total = 0.0
        for batch in loader:
            # label: sync-copy gpu sure
            image = batch["image"].to(device, dtype=torch.float32, memory_format=torch.channels_last)
            mask = batch["mask"].to(device, dtype=torch.long)  # label: sync-copy gpu sure
            with torch.autocast(device.type, enabled=False):
                loss = nn.functional.cross_entropy(net(image), mask)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            step += 1
            total += loss.item()  # label: host-read gpu sure
            tracker.log({"loss": loss.item(), "step": step})  # label: step-log both maybe; host-read gpu maybe
            if step % 10 == 0:
                for name, weight in net.named_parameters():
                    # label: histograms both sure; host-metric both maybe
                    tracker.log({name: histogram(weight.detach()), "grad": histogram(weight.grad)})
                evaluate(net, held)  # label: validation-share both likely


if __name__ == "__main__":
    train()
