# control
# verdict: compute
"""Imitates a carefully kept Lightning code base for 3-D brain tumour segmentation: volumes normalised once and kept in
memory, random patches and augmentation in persistent workers, mixed precision on CUDA, validation now and then."""

import os
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, write_volumes
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from monai.inferers import SlidingWindowInferer
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset

CUDA = device.type == "cuda"


@dataclass
class Config:
    patch: tuple = (32, 32, 32)
    batch: int = 32 if CUDA else 2
    workers: int = min(8, len(os.sched_getaffinity(0))) if CUDA else 1
    widths: tuple = (32, 64, 128) if CUDA else (8, 16, 32)
    epochs: int = 50
    steps: int = 40
    lr: float = 3e-4


def preprocess(file):
    with np.load(file) as case:
        image, label = case["image"], case["label"]
    low, high = np.percentile(image, (0.5, 99.5))
    image = np.clip(image, low, high)
    return ((image - image.mean()) / image.std()).astype(np.float32), label


class PatchDataset(Dataset):
    def __init__(self, cases, cfg):
        self.cases, self.cfg = cases, cfg

    def __len__(self):
        return self.cfg.steps * self.cfg.batch

    def __getitem__(self, index):
        random = np.random.default_rng(torch.randint(2**31, ()).item())
        image, label = self.cases[random.integers(len(self.cases))]
        start = [random.integers(0, s - p + 1) for s, p in zip(image.shape, self.cfg.patch, strict=True)]
        box = tuple(slice(a, a + p) for a, p in zip(start, self.cfg.patch, strict=True))
        image, label = image[box], label[box]
        for axis in range(3):
            if random.random() < 0.5:
                image, label = np.flip(image, axis), np.flip(label, axis)
        if random.random() < 0.5:
            angle = random.uniform(-15, 15)
            image = ndimage.rotate(image, angle, (1, 2), reshape=False, order=1)
            label = ndimage.rotate(label, angle, (1, 2), reshape=False, order=0)
        if random.random() < 0.5:
            image = ndimage.gaussian_filter(image, random.uniform(0.3, 1))
        image = image + random.normal(0, 0.05, image.shape)
        image = image * random.uniform(0.9, 1.1) + random.uniform(-0.1, 0.1)
        return torch.from_numpy(image[None].astype(np.float32)), torch.from_numpy(label.copy()).long()


class BrainModule(L.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.net = UNet(3, 1, 2, cfg.widths)
        if CUDA:
            self.net = self.net.to(memory_format=torch.channels_last_3d)
        self.inferer = SlidingWindowInferer(cfg.patch, sw_batch_size=4, overlap=0.25)

    def training_step(self, batch, batch_idx):
        image, label = batch
        if CUDA:
            image = image.contiguous(memory_format=torch.channels_last_3d)
        logits = self.net(image)
        p = logits.float().softmax(1)[:, 1]
        dice = 1 - (2 * (p * label).sum() + 1) / (p.sum() + label.sum() + 1)
        loss = F.cross_entropy(logits, label) + dice
        self.log("loss", loss.detach(), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        image, label = batch
        guess = self.inferer(image, self.net).argmax(1)
        dice = 2 * (guess * label).sum() / (guess.sum() + label.sum() + 1)
        self.log("val_dice", dice, on_epoch=True, batch_size=1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.cfg.lr, fused=CUDA)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.cfg.epochs)]


class PrintEpoch(Callback):
    def on_train_epoch_end(self, trainer, module):
        print(
            "step",
            trainer.global_step,
            {k: round(float(v), 3) for k, v in trainer.callback_metrics.items()},
            flush=True,
        )


def main():
    cfg = Config()
    L.seed_everything(7, workers=True)
    cases = [preprocess(file) for file in write_volumes(folder("brains"), 8, (64, 64, 48))]
    train = DataLoader(PatchDataset(cases[:7], cfg), cfg.batch, num_workers=cfg.workers, pin_memory=CUDA,
                       persistent_workers=True, drop_last=True)  # fmt: skip
    held = [(torch.from_numpy(image[None]), torch.from_numpy(label).long()) for image, label in cases[7:]]
    trainer = L.Trainer(
        accelerator="auto", devices=1, max_epochs=cfg.epochs, check_val_every_n_epoch=10, num_sanity_val_steps=0,
        precision="bf16-mixed" if CUDA else "32-true", benchmark=True, logger=False, enable_progress_bar=False,
        callbacks=[ModelCheckpoint(folder("best"), monitor="val_dice", mode="max"), PrintEpoch()],
    )  # fmt: skip
    trainer.fit(BrainModule(cfg), train, DataLoader(held, 1))


if __name__ == "__main__":
    main()
