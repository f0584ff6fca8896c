"""Retinal vessel U-Net with argparse, as the much-copied train.py of U-Net tutorials: several evaluations an epoch."""
# verdict: validation

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import device, folder, write_images
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, random_split


class BasicDataset(Dataset):
    def __init__(self, images_dir: Path, scale: float = 0.25):
        self.scale = scale
        self.ids = sorted(p for p in images_dir.glob("*.png") if not p.stem.endswith("_mask"))

    def __len__(self):
        return len(self.ids)

    def preprocess(self, pil_img, scale, is_mask):
        w, h = pil_img.size
        new_w, new_h = int(scale * w), int(scale * h)
        pil_img = pil_img.resize((new_w, new_h), Image.Resampling.NEAREST if is_mask else Image.Resampling.BICUBIC)
        img = np.asarray(pil_img)
        if is_mask:
            mask = np.zeros((new_h, new_w), dtype=np.int64)
            for i, v in enumerate(np.unique(img)):
                mask[img == v] = i
            return mask
        return img.transpose((2, 0, 1)) / 255.0

    def __getitem__(self, idx):
        name = self.ids[idx]
        img = self.preprocess(Image.open(name).convert("RGB"), self.scale, False)
        mask = self.preprocess(Image.open(str(name).replace(".png", "_mask.png")), self.scale, True)
        return {"image": torch.as_tensor(img.copy()).float().contiguous(), "mask": torch.as_tensor(mask).long()}


class DoubleConv(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_ch, out_ch, 3, padding=1, bias=False), nn.BatchNorm2d(out_ch)
        self.conv2, self.bn2 = nn.Conv2d(out_ch, out_ch, 3, padding=1, bias=False), nn.BatchNorm2d(out_ch)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class VesselUNet(nn.Module):
    def __init__(self, n_channels, n_classes, base=16):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(n_channels, base), DoubleConv(base, 32), DoubleConv(32, 64)
        self.up1, self.up2 = nn.ConvTranspose2d(64, 32, 2, stride=2), nn.ConvTranspose2d(32, base, 2, stride=2)
        self.conv1, self.conv2 = DoubleConv(64, 32), DoubleConv(2 * base, base)
        self.outc = nn.Conv2d(base, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        x = self.conv1(torch.cat([x2, self.up1(x3)], dim=1))
        return self.outc(self.conv2(torch.cat([x1, self.up2(x)], dim=1)))


def dice_coeff(pred, target, eps=1e-6):
    inter = 2 * (pred * target).sum(dim=(-1, -2))
    return ((inter + eps) / (pred.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2)) + eps)).mean()


@torch.inference_mode()
def evaluate(net, dataloader):
    net.eval()
    score = 0
    for batch in dataloader:
        image, mask_true = batch["image"].to(device), batch["mask"].to(device)
        mask_pred = F.one_hot(net(image).argmax(dim=1), 2).permute(0, 3, 1, 2).float()
        score += dice_coeff(mask_pred[:, 1:], F.one_hot(mask_true, 2).permute(0, 3, 1, 2).float()[:, 1:])
    net.train()
    return score / max(len(dataloader), 1)


def train_net(net, args, data_dir, ckpt_dir):
    dataset = BasicDataset(data_dir, 0.25)
    train_set, val_set = random_split(dataset, [1 - args.val / 100, args.val / 100], torch.Generator().manual_seed(0))
    # label: few-workers gpu likely; small-batch gpu likely
    loader_args = {"batch_size": args.batch_size, "num_workers": 2, "pin_memory": True}
    # label: no-persistent-workers both likely; uncached-items both likely; heavy-items gpu sure
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    # label: no-persistent-workers both sure; uncached-items both maybe
    val_loader = DataLoader(val_set, shuffle=False, drop_last=False, **loader_args)
    optimizer = optim.RMSprop(net.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.9)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    criterion, global_step = nn.CrossEntropyLoss(), 0
    for epoch in range(1, 16):
        net.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch["image"].to(device), batch["mask"].to(device)  # label: sync-copy gpu likely
            masks_pred = net(images)  # label: no-autocast gpu sure
            loss = criterion(masks_pred, true_masks)
            loss = loss + 1 - dice_coeff(F.softmax(masks_pred, dim=1)[:, 1], (true_masks == 1).float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()  # label: host-read gpu likely
            division_step = len(dataset) // (5 * args.batch_size)
            if division_step > 0 and global_step % division_step == 0:
                # label: host-read gpu maybe
                hist = {tag: np.histogram(value.data.cpu().numpy(), bins=64) for tag, value in net.named_parameters()}
                val_score = evaluate(net, val_loader)  # label: validation-share both sure
                scheduler.step(val_score)
                print(f"{epoch} {global_step} {len(hist)} loss {loss.item():.4f} dice {val_score:.4f}", flush=True)
        torch.save(net.state_dict(), ckpt_dir / f"checkpoint_epoch{epoch}.pth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the U-Net on images and target masks")
    parser.add_argument("--batch-size", "-b", type=int, default=4)
    parser.add_argument("--validation", "-v", dest="val", type=float, default=20.0)
    data = folder("retina")
    write_images(data, 40, (608, 576))
    # label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
    unet = VesselUNet(n_channels=3, n_classes=2).to(device)
    train_net(unet, parser.parse_args(), data, folder("checkpoints"))
