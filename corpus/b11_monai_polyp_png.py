"""Imitates a user's script for binary segmentation of endoscopy pictures, derived from a 2-D tutorial with dictionary
transforms: PNG files read in each epoch, scores printed in each step, the last and the best weights saved."""
# verdict: compute

import argparse
import logging

import numpy as np
import torch
from common import UNet, device, folder, write_images
from monai.data import DataLoader, Dataset, decollate_batch
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.transforms import (
    Activations,
    AsDiscrete,
    Compose,
    EnsureChannelFirstd,
    Lambdad,
    LoadImaged,
    RandAdjustContrastd,
    RandFlipd,
    RandRotated,
    Resized,
    ScaleIntensityd,
)
from sklearn.metrics import f1_score, jaccard_score

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--size", type=int, default=128)
parser.add_argument("--patience", type=int, default=30)


def get_transforms(size):
    load = [
        LoadImaged(keys=["img", "seg"], reader="PILReader"),
        EnsureChannelFirstd(keys=["img", "seg"]),
        ScaleIntensityd(keys=["img", "seg"]),
        Resized(keys=["img", "seg"], spatial_size=(size, size), mode=("bilinear", "nearest")),
    ]
    augment = [
        RandFlipd(keys=["img", "seg"], prob=0.5, spatial_axis=0),
        RandRotated(keys=["img", "seg"], range_x=0.5, prob=0.5, mode=("bilinear", "nearest")),
        RandAdjustContrastd(keys=["img"], prob=0.3),
    ]
    binary = Lambdad(keys=["seg"], func=lambda x: (x > 0.5).float())
    return Compose([*load, *augment, binary]), Compose([*load, binary])


def get_loaders(args):
    pictures = write_images(folder("polyps"), 52, (640, 512))
    files = [{"img": str(p), "seg": str(p.with_name(f"{p.stem}_mask.png"))} for p in pictures]
    train_trans, val_trans = get_transforms(args.size)
    train_ds = Dataset(data=files[:40], transform=train_trans)
    val_ds = Dataset(data=files[40:], transform=val_trans)
    # label: no-workers both sure; uncached-items both sure; heavy-items both likely; unpinned-memory gpu maybe
    train_loader = DataLoader(train_ds, batch_size=args.batch_size, shuffle=True)  # label: small-batch gpu likely
    # label: no-workers both likely; uncached-items both sure
    val_loader = DataLoader(val_ds, batch_size=1)
    return train_loader, val_loader


def train_one_epoch(model, loader, optimizer, loss_fn, epoch):
    model.train()
    total, dices, ious = 0.0, [], []
    for i, batch in enumerate(loader):
        x = batch["img"].to(device)
        y = batch["seg"].to(device)
        optimizer.zero_grad()
        # label: no-autocast gpu sure; metadata-tensor both likely
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        # label: host-read gpu likely
        total += loss.item()
        # label: host-read gpu likely; host-metric gpu sure; host-metric cpu likely
        pred = (torch.sigmoid(logits) > 0.5).detach().cpu().numpy().astype(np.uint8).reshape(-1)
        true = y.cpu().numpy().astype(np.uint8).reshape(-1)
        dices.append(f1_score(true, pred, zero_division=0))
        ious.append(jaccard_score(true, pred, zero_division=0))
        logging.info("epoch %d step %d loss %.4f dice %.4f", epoch, i, total / (i + 1), np.mean(dices))
        torch.cuda.empty_cache()  # label: empty-cache gpu sure
    return total / len(loader), np.mean(dices), np.mean(ious)


def validate(model, loader, metric):
    model.eval()
    post = Compose([Activations(sigmoid=True), AsDiscrete(threshold=0.5)])
    for batch in loader:
        outputs = model(batch["img"].to(device))  # label: validation-graph both sure
        outputs = [post(o) for o in decollate_batch(outputs.detach())]
        metric(y_pred=outputs, y=decollate_batch(batch["seg"].to(device)))
    dice = metric.aggregate().item()
    metric.reset()
    return dice


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    args = parser.parse_args()
    torch.manual_seed(0)
    train_loader, val_loader = get_loaders(args)
    # label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
    model = UNet(2, 3, 1, widths=(16, 32, 64, 128)).to(device)
    loss_fn = DiceCELoss(sigmoid=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    metric = DiceMetric(include_background=True, reduction="mean")
    weights, best, waited = folder("polyp-weights"), 0.0, 0
    for epoch in range(args.epochs):
        loss, dice, iou = train_one_epoch(model, train_loader, optimizer, loss_fn, epoch)
        val_dice = validate(model, val_loader, metric)  # label: validation-share both maybe
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.4f} dice {dice:.4f} iou {iou:.4f} val_dice {val_dice:.4f}")
        torch.save(model.state_dict(), weights / "last.pth")
        waited += 1
        if val_dice > best:
            best, waited = val_dice, 0
            torch.save(model.state_dict(), weights / "best.pth")
        if waited > args.patience:
            break


if __name__ == "__main__":
    main()
