# verdict: input|compute
"""Imitates a Lightning-template project for polyp segmentation: a LightningDataModule over PNG pairs, a LightningModule
with Dice+BCE loss and torchmetrics, and a Trainer with a progress bar, as cloned from a template and little changed."""

import lightning as L
import numpy as np
import torch
from common import folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryF1Score, BinaryJaccardIndex

HPARAMS = {"lr": 1e-3, "batch_size": 4, "image_size": 96, "num_workers": 0, "max_epochs": 20, "base": 12}


class DoubleConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.net = nn.Sequential(
            # label: conv-bias-before-norm both likely
            nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
            nn.Conv2d(c_out, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class SmallUNet(nn.Module):
    def __init__(self, base=12):
        super().__init__()
        self.enc1, self.enc2 = DoubleConv(3, base), DoubleConv(base, 2 * base)
        self.enc3 = DoubleConv(2 * base, 4 * base)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * base, 2 * base, 2, 2), nn.ConvTranspose2d(2 * base, base, 2, 2)
        self.dec2, self.dec1 = DoubleConv(4 * base, 2 * base), DoubleConv(2 * base, base)
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(self.pool(a))
        c = self.enc3(self.pool(b))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        return self.out(self.dec1(torch.cat([self.up1(b), a], 1)))


class PolypDataset(Dataset):
    def __init__(self, files, size, augment):
        self.files, self.size, self.augment = files, size, augment
        self.random = np.random.default_rng(0)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image = Image.open(path).convert("RGB").resize((self.size, self.size), Image.BICUBIC)
        mask = Image.open(path.with_name(f"{path.stem}_mask.png")).convert("L").resize((self.size, self.size), 0)
        image, mask = np.asarray(image, np.float32) / 255, np.asarray(mask, np.float32)[None] / 255
        image = (image - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        if self.augment and self.random.random() < 0.5:
            image, mask = image[:, ::-1], mask[..., ::-1]
        image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()
        return image, torch.from_numpy(mask.copy())


class PolypDataModule(L.LightningDataModule):
    def __init__(self, hparams):
        super().__init__()
        self.hp = hparams

        files = write_images(folder("polyps"), 56, (960, 768))
        self.train_files, self.val_files = files[:48], files[48:]

    def train_dataloader(self):
        data = PolypDataset(self.train_files, self.hp["image_size"], augment=True)
        # label: no-workers both sure; heavy-items both sure; uncached-items both sure; unpinned-memory gpu likely
        return DataLoader(data, self.hp["batch_size"], shuffle=True, num_workers=self.hp["num_workers"])

    def val_dataloader(self):
        return DataLoader(PolypDataset(self.val_files, self.hp["image_size"], augment=False), self.hp["batch_size"])


class SegModule(L.LightningModule):
    def __init__(self, hparams):
        super().__init__()
        # label: no-channels-last gpu maybe; small-batch gpu likely
        self.hp, self.net, self.bce = hparams, SmallUNet(hparams["base"]), nn.BCEWithLogitsLoss()
        metrics = MetricCollection({"f1": BinaryF1Score(), "iou": BinaryJaccardIndex()})
        self.train_metrics, self.val_metrics = metrics.clone("train/"), metrics.clone("val/")

    def loss(self, logits, mask):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
        return self.bce(logits, mask) + dice

    def training_step(self, batch, batch_idx):
        image, mask = batch
        logits = self.net(image)
        loss = self.loss(logits, mask)
        self.train_metrics.update(logits.sigmoid(), mask.int())
        # label: host-read gpu likely
        self.log("train/loss_step", loss.item(), prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        self.log_dict(self.train_metrics.compute())
        self.train_metrics.reset()

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        logits = self.net(image)
        self.val_metrics.update(logits.sigmoid(), mask.int())
        self.log("val/loss", self.loss(logits, mask))

    def on_validation_epoch_end(self):
        print(f"step {self.global_step}: {self.val_metrics.compute()['val/iou']:.3f}")
        self.val_metrics.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hp["lr"])


if __name__ == "__main__":
    L.seed_everything(42, workers=True)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu likely
    trainer = L.Trainer(accelerator="auto", devices=1, max_epochs=HPARAMS["max_epochs"], log_every_n_steps=5,
                        default_root_dir=folder("logs"), num_sanity_val_steps=0, logger=False)  # fmt: skip
    trainer.fit(SegModule(HPARAMS), datamodule=PolypDataModule(HPARAMS))
