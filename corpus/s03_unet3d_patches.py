"""3-D U-Net on overlapping patches: 32 workers, each reads every volume again in each epoch."""
# verdict: input

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import UNet, device, folder, write_volumes
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, paths, random=True):
        self.paths, self.random, self.volumes = paths, random, {}
        self.corners = [(z, y) for z in (0, 8, 16) for y in (0, 24)]

    def __len__(self):
        return len(self.paths) * len(self.corners)

    def __getitem__(self, index):
        path, (z, y) = self.paths[index // len(self.corners)], self.corners[index % len(self.corners)]
        if path not in self.volumes:
            with np.load(path) as file:
                self.volumes[path] = file["image"], file["label"]
        box = (slice(z, z + 16), slice(y, y + 48), slice(8, 56))
        image, label = self.volumes[path]
        if self.random:
            angle = np.random.uniform(-30, 30)
            image = ndimage.rotate(image, angle, axes=(1, 2), reshape=False, order=3, mode="reflect")
            label = ndimage.rotate(label, angle, axes=(1, 2), reshape=False, order=0, mode="reflect")
            field = [5 * ndimage.gaussian_filter(np.random.normal(size=image.shape), 4) for _ in range(3)]
            grid = [axis + shift for axis, shift in zip(np.indices(image.shape), field, strict=True)]
            image, label = ndimage.map_coordinates(image, grid, order=3), ndimage.map_coordinates(label, grid, order=0)
            image = ndimage.gaussian_filter(image, np.random.uniform(0.1, 1.0))
        image, label = image[box], label[box]
        boundary = ndimage.grey_dilation(label, size=3) != ndimage.grey_erosion(label, size=3)
        return torch.from_numpy(image[None].astype(np.float32)), torch.from_numpy(boundary[None].astype(np.float32))


def validate(net, loader, root):
    net.eval()  # label: validation-share both likely
    with torch.no_grad():
        for number, (image, _label) in enumerate(loader):
            # label: host-metric both maybe; host-read gpu maybe
            output = net(image.to(device)).sigmoid().cpu().numpy()
            if number < 3:
                figure = plt.figure()
                plt.imshow(output[0, 0, 8])
                figure.savefig(root / f"{number}.png")  # label: sync-plot both likely
                plt.close(figure)
    net.train()


def main():
    root = folder("patches")
    paths = write_volumes(root, 2, (32, 72, 64))
    # label: heavy-items both sure; many-workers both sure; no-persistent-workers both sure
    # label: unpinned-memory gpu sure; small-batch both maybe
    loader = DataLoader(Patches(paths), batch_size=1, shuffle=True, num_workers=8)
    held = DataLoader(Patches(paths[:1], random=False), batch_size=1)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = nn.Sequential(nn.GroupNorm(1, 1), UNet(3, 1, 1, (2, 4), norm=lambda n: nn.GroupNorm(2, n))).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    step = 0
    for _ in range(20):
        for image, label in loader:
            image, label = image.to(device, non_blocking=True), label.to(device, non_blocking=True)
            loss = nn.functional.binary_cross_entropy_with_logits(net(image), label)
            total = loss.item()  # label: host-read gpu sure
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(step, total)
            if step % 40 == 0:
                validate(net, held, root)  # label: validation-share both likely; sync-plot both likely


if __name__ == "__main__":
    main()
