"""V-Net on crops cut beforehand: elastic transform, host-made one-hot labels, saved nine epochs of ten."""
# verdict: compute

import numpy as np
import torch
from common import UNet, device, folder, volume
from scipy.interpolate import RegularGridInterpolator
from torch.utils.data import DataLoader, Dataset


def elastic(image, label, random):
    grid = np.meshgrid(*[np.arange(s) for s in label.shape], indexing="ij")
    shifted = np.stack([axis + random.normal(0, 0.5, axis.shape) for axis in grid], -1)
    axes = [np.arange(s) for s in label.shape]
    image = np.stack([RegularGridInterpolator(axes, c, bounds_error=False, fill_value=0)(shifted) for c in image])
    label = RegularGridInterpolator(axes, label, method="nearest", bounds_error=False, fill_value=0)(shifted)
    return image.astype(np.float32), label.astype(np.int64)


class Crops(Dataset):
    def __init__(self, count):
        self.root, random = folder("crops"), np.random.default_rng(0)
        self.count = count
        for number in range(count):
            image, label = volume(random, (24, 24, 24))
            np.save(self.root / f"{number}.npy", np.stack([image] * 4))
            np.save(self.root / f"{number}_label.npy", label)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image, label = np.load(self.root / f"{index}.npy"), np.load(self.root / f"{index}_label.npy").astype(np.int64)
        if np.random.rand() < 0.5:
            kind = np.random.randint(3)
            if kind == 0:
                image = image + np.random.normal(0, 0.1, image.shape).astype(np.float32)
            elif kind == 1:
                image, label = image[:, ::-1].copy(), label[::-1].copy()
            else:
                image, label = elastic(image, label, np.random)
        return torch.from_numpy(image), torch.from_numpy(label)


def dice(output, target):
    zeros = torch.zeros(target.shape[0], 2, *target.shape[1:])  # label: recreate both sure
    one_hot = zeros.to(device).scatter_(1, target[:, None], 1)  # label: recreate both sure; unpinned-memory gpu maybe
    output = output.softmax(1)
    per_class = 1 - 2 * (output * one_hot).sum((0, 2, 3, 4)) / (output + one_hot).sum((0, 2, 3, 4))
    return per_class.mean(), per_class.detach().cpu().numpy()  # label: host-read gpu sure


def main():
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    # label: many-workers both maybe; heavy-items both sure; unpinned-memory gpu sure
    loader = DataLoader(Crops(48), batch_size=4, shuffle=True, num_workers=2)
    held = DataLoader(Crops(6), batch_size=4)
    # label: conv-bias-before-norm both sure; no-autocast gpu sure; deterministic gpu likely
    net = UNet(3, 4, 2, (16, 32, 64), bias=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.99)
    for epoch in range(10):
        net.train()
        for image, label in loader:
            image, label = image.to(device), label.to(device)
            image.requires_grad = True  # label: needless-grad both sure
            optimizer.zero_grad()
            loss, per_class = dice(net(image), label)  # label: needless-grad both sure
            loss.backward()
            optimizer.step()
            total = loss.item()  # label: host-read gpu sure
        print(epoch, total, per_class)
        net.eval()  # label: validation-share both maybe
        with torch.no_grad():
            for image, label in held:
                dice(net(image.to(device)), label.to(device))
        if (epoch + 1) % 10:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, folder("weights") / "last.pt")  # label: checkpoint-stall both likely


if __name__ == "__main__":
    main()
