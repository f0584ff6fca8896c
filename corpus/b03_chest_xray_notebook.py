"""Lung fields in chest X-rays, as a competition notebook turned into a script: default loaders, pictures, curves."""
# verdict: input|validation

import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from common import UNet, device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMG_SIZE, BATCH_SIZE, EPOCHS, LR = 128, 8, 15, 3e-4
DATA, FIGURES = folder("xray"), folder("figures")


class LungDataset(Dataset):
    def __init__(self, files, augment=False):
        self.files = files
        self.augment = augment

    def __len__(self):
        return len(self.files)

    def clahe_like(self, img):
        hist, bins = np.histogram(img.flatten(), 256, (0, 255))
        cdf = hist.cumsum() / hist.sum()
        return np.interp(img.flatten(), bins[:-1], 255 * cdf).reshape(img.shape)

    def __getitem__(self, i):
        img = np.array(Image.open(self.files[i]).convert("L"))
        mask = Image.open(str(self.files[i]).replace(".png", "_mask.png")).convert("L")
        img = self.clahe_like(img)
        img = np.array(Image.fromarray(img.astype(np.uint8)).resize((IMG_SIZE, IMG_SIZE)))
        mask = np.array(mask.resize((IMG_SIZE, IMG_SIZE), Image.Resampling.NEAREST))
        if self.augment and np.random.default_rng().random() < 0.5:
            img, mask = img[:, ::-1], mask[:, ::-1]
        # Z-score, in float64 as numpy leaves it.
        img = (img - img.mean()) / (img.std() + 1e-7)
        return torch.from_numpy(img[None].copy()), torch.from_numpy(mask[None] / 255.0)


files = write_images(DATA, 58, (512, 512))
train_ds, valid_ds = LungDataset(files[:48], augment=True), LungDataset(files[48:])
# label: no-workers both sure; heavy-items both sure; uncached-items both sure; unpinned-memory gpu maybe
train_dl = DataLoader(train_ds, batch_size=BATCH_SIZE, shuffle=True)  # label: small-batch gpu maybe
# label: no-workers both likely; uncached-items both likely
valid_dl = DataLoader(valid_ds, batch_size=BATCH_SIZE)

# label: conv-bias-before-norm both maybe; cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
model = UNet(kind=2, taken=1, given=1, widths=(16, 32, 64), bias=True).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
bce = nn.BCEWithLogitsLoss()


def dice_loss(logits, y):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


def iou_numpy(logits, y):
    pred = (torch.sigmoid(logits) > 0.5).detach().cpu().numpy()
    true = y.cpu().numpy() > 0.5
    return np.mean([(a & b).sum() / ((a | b).sum() + 1e-7) for a, b in zip(pred, true, strict=True)])


def show_predictions(x, y, logits, name):
    fig, ax = plt.subplots(3, 3, figsize=(9, 9))
    for row in range(3):
        ax[row, 0].imshow(x[row, 0].cpu(), cmap="gray")
        ax[row, 1].imshow(y[row, 0].cpu(), cmap="gray")
        ax[row, 2].imshow(torch.sigmoid(logits[row, 0]).detach().cpu(), cmap="gray")
    for a, title in zip(ax[0], ("X-ray", "mask", "prediction"), strict=True):
        a.set_title(title)
    fig.savefig(FIGURES / f"{name}.png")
    plt.close(fig)


def evaluate(loader):
    model.eval()
    losses, ious = [], []
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device).float(), y.to(device).float()
            out = model(x)
            losses.append((bce(out, y) + dice_loss(out, y)).item())
            ious.append(iou_numpy(out, y))
    return np.mean(losses), np.mean(ious)


history = {"train": [], "valid": []}
step = 0
for epoch in range(EPOCHS):
    start = time.time()
    model.train()
    for x, y in train_dl:
        x, y = x.to(device).float(), y.to(device).float()  # label: late-cast both likely
        optimizer.zero_grad()
        out = model(x)  # label: no-autocast gpu sure
        loss = bce(out, y) + dice_loss(out, y)
        loss.backward()
        optimizer.step()
        iou = iou_numpy(out, y)  # label: host-metric gpu likely
        step += 1
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} iou {iou:.4f}", flush=True)
        if step % 6 == 0:
            show_predictions(x, y, out, f"step_{step:04d}")  # label: sync-plot both sure
    # Accuracy on both sets for the learning curves.
    train_loss, train_iou = evaluate(train_dl)  # label: training-cases-validated both sure; validation-share both sure
    valid_loss, valid_iou = evaluate(valid_dl)
    history["train"].append((train_loss, train_iou))
    history["valid"].append((valid_loss, valid_iou))
    print(f"epoch {epoch} train {train_iou:.3f} valid {valid_iou:.3f} took {time.time() - start:.1f}s", flush=True)
    torch.save(model.state_dict(), DATA / "model.pth")
