"""Slices zoomed by cubic splines for a small transformer; a Dice loss that reads each class."""
# verdict: input

import random

import numpy as np
import torch
from common import device, folder, write_volumes
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

CLASSES = 9


class Slices(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with np.load(self.paths[index]) as file:
            image, label = file["image"], file["label"]
        if random.random() > 0.5:
            k = np.random.randint(0, 4)
            image, label = np.rot90(image, k), np.rot90(label, k)
        else:
            angle = np.random.randint(-20, 20)
            image = ndimage.rotate(image, angle, order=0, reshape=False)
            label = ndimage.rotate(label, angle, order=0, reshape=False)
        scale = 112 / image.shape[0]
        image, label = ndimage.zoom(image, scale, order=3), ndimage.zoom(label, scale, order=0)
        return torch.from_numpy(image[None].astype(np.float32)), torch.from_numpy(label.astype(np.int64))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 8, 8, bias=False), nn.BatchNorm2d(32))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
        self.head = nn.ConvTranspose2d(32, CLASSES, 8, 8)

    def forward(self, x):
        x = self.stem(x)
        tokens = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.transpose(1, 2).reshape(x.shape))


def dice(output, label):
    loss, seen = 0.0, []
    for number in range(CLASSES):
        score, target = output[:, number], (label == number).float()
        one = 1 - (2 * (score * target).sum() + 1e-5) / ((score * score).sum() + (target * target).sum() + 1e-5)
        seen.append(1 - one.item())  # label: host-read gpu sure
        loss = loss + one
    return loss / CLASSES


def main():
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    root = folder("slices")
    # label: heavy-items both sure; many-workers both sure; uncached-items both maybe
    # label: no-persistent-workers both maybe
    loader = DataLoader(
        Slices(write_volumes(root, 48, (256, 256))), batch_size=8, shuffle=True, num_workers=8, pin_memory=True
    )
    # label: no-autocast gpu sure; deterministic gpu sure; cudnn-benchmark-off gpu sure
    net = Net().to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    writer, step = SummaryWriter(str(root / "log")), 0
    for _ in range(20):
        for image, label in loader:
            image, label = image.to(device), label.to(device)  # label: sync-copy gpu sure
            output = net(image)
            entropy = nn.functional.cross_entropy(output, label)
            overlap = dice(output.softmax(1), label)  # label: host-read gpu sure
            loss = 0.5 * entropy + 0.5 * overlap
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 - step / 1000) ** 0.9
            step += 1
            writer.add_scalar("total", loss, step)  # label: host-read gpu sure; step-log both likely
            writer.add_scalar("entropy", entropy, step)  # label: host-read gpu sure; step-log both likely
            # label: host-read gpu sure; step-log both likely
            print(f"{step}: {loss.item():.4f} {entropy.item():.4f}")


if __name__ == "__main__":
    main()
