# verdict: validation|compute
"""Imitates a paper's Lightning code for 3-D organ segmentation: random patches of npz volumes, a sliding window over
whole volumes after every short epoch, every checkpoint kept, and flags left from debugging in the Trainer."""

import argparse
from types import SimpleNamespace

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, folder, write_volumes
from lightning.pytorch.callbacks import ModelCheckpoint
from monai.inferers import sliding_window_inference
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    """All volumes in memory, one random patch per item in training."""

    def __init__(self, files, patch=None, length=None):
        self.cases, self.patch = [], patch
        for file in files:
            with np.load(file) as case:
                image, label = case["image"], case["label"]
            self.cases.append(((image - image.mean()) / image.std(), label.astype(np.int64)))
        self.length = length or len(self.cases)
        self.random = np.random.default_rng(1)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image, label = self.cases[index % len(self.cases)]
        if self.patch:
            at = [self.random.integers(0, side - self.patch + 1) for side in image.shape]
            box = tuple(slice(a, a + self.patch) for a in at)
            image, label = image[box], label[box]
            for axis in range(3):
                if self.random.random() < 0.5:
                    image, label = np.flip(image, axis), np.flip(label, axis)
        return torch.from_numpy(image[None].copy()), torch.from_numpy(label.copy())


class OrganSegmenter(L.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.save_hyperparameters(vars(args))
        # label: conv-bias-before-norm both likely
        self.model = UNet(3, 1, args.classes, (8, 16, 32), bias=True, norm=nn.InstanceNorm3d)
        self.best = 0.0
        self.dices = []

    def forward(self, x):
        return self.model(x)

    def dice_ce(self, logits, label):
        p = logits.softmax(1)
        hot = F.one_hot(label, p.shape[1]).movedim(-1, 1)
        dice = (2 * (p * hot).sum((2, 3, 4)) + 1e-5) / (p.sum((2, 3, 4)) + hot.sum((2, 3, 4)) + 1e-5)
        return F.cross_entropy(logits, label) + 1 - dice[:, 1:].mean()

    def training_step(self, batch, batch_idx):
        image, label = batch
        loss = self.dice_ce(self(image), label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        image, label = batch
        patch = (self.hparams.patch,) * 3
        # label: validation-share both sure
        logits = sliding_window_inference(image, patch, 1, self.model, overlap=0.5)
        guess = logits.argmax(1)
        self.dices.append(2 * ((guess == 1) & (label == 1)).sum() / ((guess == 1).sum() + (label == 1).sum() + 1))

    def on_validation_epoch_end(self):
        dice = torch.stack(self.dices).mean()
        self.dices.clear()
        self.log("val_dice", dice)
        print("step", self.global_step, "val dice", float(dice), flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.99, nesterov=True)
        schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, self.hparams.epochs, 0.9)
        return [optimizer], [schedule]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--patch", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    args = SimpleNamespace(**vars(parser.parse_args()))

    L.seed_everything(0)
    files = write_volumes(folder("organs"), 8, (64, 64, 64))
    train = Volumes(files[:6], args.patch, length=24)
    # label: no-persistent-workers gpu sure; no-persistent-workers cpu maybe; many-workers both likely
    # label: unpinned-memory gpu maybe; small-batch gpu likely
    train_loader = DataLoader(train, args.batch, shuffle=True, num_workers=4)
    val_loader = DataLoader(Volumes(files[6:]), 1)
    # label: checkpoint-stall both maybe
    keep = ModelCheckpoint(folder("checkpoints"), "{epoch}-{val_dice:.3f}", save_top_k=-1, save_last=True)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=args.epochs,
        check_val_every_n_epoch=1,
        callbacks=[keep],
        # label: deterministic gpu likely; cudnn-benchmark-off gpu likely
        deterministic="warn",
        # label: anomaly-detection both sure
        detect_anomaly=True,
        # label: no-autocast gpu sure
        precision=32,
        enable_progress_bar=False,
        num_sanity_val_steps=1,
        log_every_n_steps=1,
        logger=False,
    )
    trainer.fit(OrganSegmenter(args), train_loader, val_loader)


if __name__ == "__main__":
    main()
