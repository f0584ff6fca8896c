"""Skin lesion segmentation as a tidy reference script: set decoded once into memory, autocast, rare validation."""
# verdict: compute
# control

import time
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, write_images
from PIL import Image
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    size: int = 128
    batch: int = 16
    steps: int = 400
    validate_every: int = 100
    report_every: int = 10
    lr: float = 2e-3


class LesionsInMemory(Dataset):
    """Decoded and resized once; items are views of uint8 tensors, made float on the device."""

    def __init__(self, paths, size):
        self.images = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
        self.masks = torch.empty(len(paths), 1, size, size, dtype=torch.uint8)
        for number, path in enumerate(paths):
            image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            mask = Image.open(path.with_name(f"{path.stem}_mask{path.suffix}")).resize((size, size), 0)
            self.images[number] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            self.masks[number, 0] = torch.from_numpy(np.array(mask) // 255)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.masks[index]

    def __getitems__(self, indices):
        return self.images[indices], self.masks[indices]


def as_batch(items):
    return items


def ready(images, masks):
    images = images.to(device, non_blocking=True).float().div_(255).sub_(0.5).div_(0.25)
    return images.contiguous(memory_format=torch.channels_last), masks.to(device, non_blocking=True).float()


def flipped(images, masks):
    for axis in (2, 3):
        if torch.rand(()).item() < 0.5:
            images, masks = images.flip(axis), masks.flip(axis)
    return images, masks


def precision():
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def loss_of(logits, masks):
    logits = logits.float()
    share = torch.sigmoid(logits)
    overlap, total = (share * masks).sum((1, 2, 3)), (share + masks).sum((1, 2, 3))
    return F.binary_cross_entropy_with_logits(logits, masks) + 1 - ((2 * overlap + 1) / (total + 1)).mean()


@torch.inference_mode()
def validate(net, loader):
    net.eval()
    overlap = total = torch.zeros((), device=device)
    for images, masks in loader:
        images, masks = ready(images, masks)
        with precision():
            found = net(images) > 0
        overlap = overlap + 2 * (found * masks).sum()
        total = total + found.sum() + masks.sum()
    net.train()
    return (overlap / total.clamp(min=1)).item()


def main(settings):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    paths = write_images(folder("lesions"), 112, (256, 192), "bmp")
    train = LesionsInMemory(paths[:96], settings.size)
    valid = LesionsInMemory(paths[96:], settings.size)
    kept = {"batch_size": settings.batch, "pin_memory": device.type == "cuda", "collate_fn": as_batch}
    loader = DataLoader(train, shuffle=True, drop_last=True, **kept)  # label: small-batch gpu maybe
    valid_loader = DataLoader(valid, **kept)
    net = UNet(kind=2, taken=3, given=1, widths=(12, 24, 48, 96)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.lr, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=settings.steps)
    step, best, running, start = 0, 0.0, torch.zeros((), device=device), time.perf_counter()
    while step < settings.steps:
        for images, masks in loader:
            images, masks = flipped(*ready(images, masks))
            with precision():
                logits = net(images)
            loss = loss_of(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            running += loss.detach()
            step += 1
            if step % settings.report_every == 0:
                mean = running.item() / settings.report_every
                running.zero_()
                print(f"{step} loss {mean:.4f} {time.perf_counter() - start:.1f} s", flush=True)
            if step % settings.validate_every == 0:
                dice = validate(net, valid_loader)
                print(f"{step} dice {dice:.4f}", flush=True)
                if dice > best:
                    best = dice
                    torch.save(net.state_dict(), paths[0].with_name("best.pt"))
            if step == settings.steps:
                break


if __name__ == "__main__":
    main(Settings())
