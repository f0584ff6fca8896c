"""Depthwise net on photographs of many sizes: the whole validation set every few steps, one image at a time."""
# verdict: validation

import numpy as np
import torch
from common import device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    def __init__(self, paths, random):
        self.paths, self.random = paths, random

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image, mask = Image.open(path), Image.open(path.with_name(f"{path.stem}_mask.jpg"))
        if self.random:
            scale = np.random.uniform(0.7, 2)
            size = (max(64, int(scale * image.width)), max(64, int(scale * image.height)))
            image, mask = image.resize(size, Image.BILINEAR), mask.resize(size, Image.NEAREST)
            left, top = np.random.randint(size[0] - 63), np.random.randint(size[1] - 63)
            image, mask = (each.crop((left, top, left + 64, top + 64)) for each in (image, mask))
        image = torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1) / 255)
        return image, torch.from_numpy((np.asarray(mask) > 127).astype(np.int64))


def depthwise(taken, given):
    return nn.Sequential(
        nn.Conv2d(taken, taken, 3, padding=1, groups=taken, bias=False), nn.Conv2d(taken, given, 1, bias=False),
        nn.BatchNorm2d(given), nn.ReLU(),
    )  # fmt: skip


def validate(net, loader):
    net.eval()  # label: validation-share both sure
    matrix = np.zeros((2, 2))
    with torch.no_grad():
        for image, mask in loader:
            # label: validation-share both sure; host-metric both likely; host-read gpu maybe
            result = net(image.to(device)).argmax(1).cpu().numpy()
            # label: host-metric both likely
            matrix += np.bincount(2 * mask.numpy().ravel() + result.ravel(), minlength=4).reshape(2, 2)
    net.train()
    return matrix


def main():
    root = folder("voc")
    paths = write_images(root, 100, (200, 160), "jpg")
    # label: heavy-items both likely; few-workers gpu likely; unpinned-memory gpu sure
    # label: no-persistent-workers both maybe; many-workers both maybe; uncached-items both maybe
    loader = DataLoader(Photographs(paths[:40], True), batch_size=8, shuffle=True, num_workers=2)
    held = DataLoader(Photographs(paths[40:], False), batch_size=1, num_workers=0)
    net = nn.Sequential(depthwise(3, 16), depthwise(16, 32), depthwise(32, 64), nn.Conv2d(64, 2, 1))
    # label: data-parallel gpu sure; no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = nn.DataParallel(net).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    step = 0
    while step < 60:
        for image, mask in loader:
            image, mask = image.to(device, dtype=torch.float32), mask.to(device, dtype=torch.long)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(image), mask)
            loss.backward()
            optimizer.step()
            total = loss.detach().cpu().numpy()  # label: host-read gpu sure
            step += 1
            if step % 10 == 0:
                print(step, total)
            if step % 2 == 0:
                # label: checkpoint-stall both likely
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, root / "last.pt")
                validate(net, held)  # label: validation-share both sure; host-metric both likely


if __name__ == "__main__":
    main()
