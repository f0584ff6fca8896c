"""Organs in CT from NIfTI files with a Trainer class: whole volumes read, resampled and cropped in each item."""
# verdict: input

from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.nn as nn
from common import UNet, device, folder, volume
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

NUM_CLASSES = 3
PATCH = (48, 48, 48)


def make_data(root: Path, count: int = 12) -> list[Path]:
    random = np.random.default_rng(3)
    for number in range(count):
        image, label = volume(random, (144, 144, 48))
        label[30:40, 60:70, 10:20] = 2
        affine = np.diag([0.8, 0.8, 1.5, 1.0])
        nib.save(nib.Nifti1Image((100 * image).astype(np.int16), affine), root / f"case_{number:03d}.nii.gz")
        nib.save(nib.Nifti1Image(label, affine), root / f"case_{number:03d}_seg.nii.gz")
    return sorted(root.glob("case_???.nii.gz"))


class CTOrganDataset(Dataset):
    def __init__(self, files, mode="train", spacing=1.0, window=(-160, 240)):
        self.files, self.mode, self.spacing, self.window = files, mode, spacing, window

    def __len__(self):
        return len(self.files)

    def read(self, path):
        nii = nib.load(path)
        image = nii.get_fdata()
        label = nib.load(str(path).replace(".nii.gz", "_seg.nii.gz")).get_fdata()
        factors = np.array(nii.header.get_zooms()) / self.spacing
        image = ndimage.zoom(image, factors, order=3)
        label = ndimage.zoom(label, factors, order=0)
        low, high = self.window
        return (np.clip(image, low, high) - low) / (high - low), label

    def random_crop(self, image, label):
        generator = np.random.default_rng()
        centre = [generator.integers(side) for side in label.shape]
        if generator.random() < 0.67:
            centre = generator.choice(np.argwhere(label > 0))
        starts = [int(np.clip(c - p // 2, 0, s - p)) for c, p, s in zip(centre, PATCH, label.shape, strict=True)]
        box = tuple(slice(start, start + side) for start, side in zip(starts, PATCH, strict=True))
        return image[box], label[box]

    def __getitem__(self, index):
        image, label = self.read(self.files[index])
        if self.mode == "train":
            image, label = self.random_crop(image, label)
        return {"image": torch.FloatTensor(image[None].copy()), "label": torch.LongTensor(label.astype(np.int64))}


def dice_ce_loss(logits, target):
    prob, dims = logits.softmax(1), (0, 2, 3, 4)
    hot = nn.functional.one_hot(target, NUM_CLASSES).permute(0, 4, 1, 2, 3).float()
    dice = (2 * (prob * hot).sum(dims) + 1e-5) / (prob.sum(dims) + hot.sum(dims) + 1e-5)
    return nn.functional.cross_entropy(logits, target) + 1 - dice[1:].mean()


class Trainer:
    def __init__(self, root: Path, epochs=20, val_interval=4):
        files = make_data(root)
        self.out, self.epochs, self.val_interval = folder("runs"), epochs, val_interval
        # label: no-workers both sure; heavy-items both sure; uncached-items both sure; small-batch gpu maybe
        self.train_loader = DataLoader(CTOrganDataset(files[:10]), batch_size=2, shuffle=True)
        # label: no-workers both maybe; uncached-items both maybe
        self.val_loader = DataLoader(CTOrganDataset(files[10:], mode="val"), batch_size=1)
        # label: conv-bias-before-norm both likely; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
        self.model = UNet(3, 1, NUM_CLASSES, widths=(8, 16, 32), bias=True).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
        self.best = 0.0

    def train_epoch(self, epoch):
        self.model.train()
        total = 0.0
        bar = tqdm(self.train_loader, desc=f"epoch {epoch}", mininterval=2)
        for batch in bar:
            image, label = batch["image"].to(device), batch["label"].to(device)
            output = self.model(image)  # label: no-autocast gpu sure
            loss = dice_ce_loss(output, label)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 12)
            self.optimizer.step()
            total += loss.item()  # label: host-read gpu likely
            bar.set_postfix(loss=f"{loss.item():.4f}")
        return total / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        scores = []
        for batch in self.val_loader:
            image, label = batch["image"], batch["label"].numpy()[0]
            sides = [side // 4 * 4 for side in image.shape[2:]]
            image = image[..., : sides[0], : sides[1], : sides[2]].to(device)
            pred = self.model(image).argmax(1).cpu().numpy()[0]
            label = label[: sides[0], : sides[1], : sides[2]]
            for organ in range(1, NUM_CLASSES):
                a, b = pred == organ, label == organ
                scores.append(2 * (a & b).sum() / max(a.sum() + b.sum(), 1))
        return float(np.mean(scores))

    def save(self, name, epoch):
        state = {"epoch": epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, self.out / name)

    def fit(self):
        for epoch in range(self.epochs):
            loss = self.train_epoch(epoch)
            self.save("latest.pth", epoch)
            self.save(f"epoch_{epoch}.pth", epoch)  # label: checkpoint-stall both maybe
            if (epoch + 1) % self.val_interval == 0:
                dice = self.validate()  # label: validation-share both maybe
                self.best = max(self.best, dice)
                print(f"epoch {epoch} loss {loss:.4f} dice {dice:.4f} best {self.best:.4f}", flush=True)


if __name__ == "__main__":
    Trainer(folder("ct")).fit()
