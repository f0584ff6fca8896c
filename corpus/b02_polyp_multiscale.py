"""Polyp segmentation with multi-scale training and a test loop over single pictures after each epoch, as in papers."""
# verdict: validation

import argparse
import os
from datetime import datetime

import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, write_images
from PIL import Image
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset


def to_tensor(picture):
    return torch.from_numpy(np.asarray(picture, np.float32).transpose(2, 0, 1) / 255)


class PolypDataset(Dataset):
    def __init__(self, paths, trainsize):
        self.images = sorted(paths)
        self.trainsize = trainsize
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        self.size = len(self.images)

    def __getitem__(self, index):
        size = (self.trainsize, self.trainsize)
        image = Image.open(self.images[index]).convert("RGB").resize(size, Image.Resampling.BILINEAR)
        gt = Image.open(str(self.images[index]).replace(".png", "_mask.png")).convert("L").resize(size)
        return (to_tensor(image) - self.mean) / self.std, torch.from_numpy(np.asarray(gt, np.float32)[None] / 255)

    def __len__(self):
        return self.size


class TestDataset:
    def __init__(self, paths, testsize):
        self.images, self.testsize, self.index = sorted(paths), testsize, 0
        self.size = len(self.images)

    def load_data(self):
        image = Image.open(self.images[self.index]).convert("RGB").resize((self.testsize, self.testsize))
        gt = Image.open(str(self.images[self.index]).replace(".png", "_mask.png")).convert("L")
        self.index += 1
        return ((to_tensor(image) - 0.45) / 0.225).unsqueeze(0), gt


def structure_loss(pred, mask):
    weit = 1 + 5 * torch.abs(F.avg_pool2d(mask, kernel_size=31, stride=1, padding=15) - mask)
    wbce = F.binary_cross_entropy_with_logits(pred, mask, reduction="none")
    wbce = (weit * wbce).sum(dim=(2, 3)) / weit.sum(dim=(2, 3))
    pred = torch.sigmoid(pred)
    inter, union = ((pred * mask) * weit).sum(dim=(2, 3)), ((pred + mask) * weit).sum(dim=(2, 3))
    return (wbce + 1 - (inter + 1) / (union - inter + 1)).mean()


def test(model, paths, testsize):
    model.eval()
    loader = TestDataset(paths, testsize)
    dice_sum = 0.0
    for _ in range(loader.size):
        image, gt = loader.load_data()  # label: no-workers both maybe; uncached-items both maybe
        gt = np.asarray(gt, np.float32)
        gt /= gt.max() + 1e-8
        res = model(image.to(device))  # label: validation-graph both sure
        res = F.interpolate(res, size=gt.shape, mode="bilinear", align_corners=False)
        res = res.sigmoid().data.cpu().numpy().squeeze()
        res = (res - res.min()) / (res.max() - res.min() + 1e-8)
        inter = (res.flatten() * gt.flatten()).sum()
        dice_sum += float((2 * inter + 1) / (res.sum() + gt.sum() + 1))  # label: host-metric both maybe
    return dice_sum / loader.size


def train(train_loader, model, optimizer, epoch, opt, step):
    model.train()
    size_rates, record = [0.75, 1, 1.25], []
    for i, pack in enumerate(train_loader, start=1):
        for rate in size_rates:
            optimizer.zero_grad()
            images, gts = pack
            images, gts = Variable(images).to(device), Variable(gts).to(device)
            trainsize = int(round(opt.trainsize * rate / 32) * 32)
            if rate != 1:
                size = (trainsize, trainsize)
                images = F.interpolate(images, size=size, mode="bilinear", align_corners=True)
                gts = F.interpolate(gts, size=size, mode="bilinear", align_corners=True)
            pred = model(images)  # label: no-autocast gpu sure
            loss = structure_loss(pred, gts)
            loss.backward()
            # label: slow-kernels gpu maybe
            for group in optimizer.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        param.grad.data.clamp_(-opt.clip, opt.clip)
            optimizer.step()
            step += 1
            if rate == 1:
                record.append(loss.data.cpu().numpy())  # label: host-read gpu likely
        if i % 2 == 0 or i == len(train_loader):
            print(f"{datetime.now()} {epoch} [{i}/{len(train_loader)}] {step} loss {np.mean(record):.4f}", flush=True)
    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epoch", type=int, default=20, help="epoch number")
    parser.add_argument("--batchsize", type=int, default=4, help="training batch size")  # label: small-batch gpu likely
    parser.add_argument("--trainsize", type=int, default=128, help="training size")
    parser.add_argument("--clip", type=float, default=0.5, help="gradient clipping margin")
    opt = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # label: cudnn-benchmark-on gpu maybe
    data, save_path = folder("polyps"), folder("snapshots")
    paths = write_images(data, 56, (384, 288))
    # label: conv-bias-before-norm both maybe; no-channels-last gpu maybe
    model = UNet(kind=2, taken=3, given=1, widths=(16, 32, 64), bias=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=1e-4)
    # label: no-persistent-workers both likely; uncached-items both maybe; unpinned-memory gpu maybe
    train_loader = DataLoader(PolypDataset(paths[:16], opt.trainsize), opt.batchsize, shuffle=True, num_workers=2)
    best, step = 0.0, 0
    for epoch in range(1, opt.epoch + 1):
        step = train(train_loader, model, optimizer, epoch, opt, step)
        dice = test(model, paths[16:], 192)  # label: validation-share both sure
        if dice > best:
            best = dice
            torch.save(model.state_dict(), os.fspath(save_path / "best.pth"))
        print(f"epoch {epoch} dice {dice:.4f} best {best:.4f}", flush=True)
