"""3-D residual net: labels resized by SciPy in the loop, between the forward and the backward pass."""
# verdict: input

import numpy as np
import torch
from common import device, folder, write_volumes
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Brains(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with np.load(self.paths[index]) as file:
            image, label = file["image"], file["label"]
        places = np.where(np.abs(image) > 1e-6)
        box = tuple(slice(each.min(), each.max() + 1) for each in places)
        image, label = image[box], label[box]
        first = np.random.randint(0, 8)
        image, label = image[first : first + 24], label[first : first + 24]
        image, label = ndimage.zoom(image, (1, 1.1, 1.1), order=1), ndimage.zoom(label, (1, 1.1, 1.1), order=0)
        image = (image - image.mean()) / image.std()
        image = np.where(image == 0, np.random.normal(size=image.shape), image)
        return torch.from_numpy(image[None].astype(np.float32)), torch.from_numpy(label[None].astype(np.float32))


def main():
    paths = write_volumes(folder("brains"), 16, (48, 96, 96), compressed=True)
    # label: heavy-items both sure; uncached-items both sure; many-workers both likely
    # label: no-persistent-workers both maybe
    loader = DataLoader(Brains(paths), batch_size=1, shuffle=True, num_workers=4, pin_memory=True)
    net = nn.Sequential(
        nn.Conv3d(1, 8, 5, stride=4, padding=2, bias=False), nn.BatchNorm3d(8), nn.ReLU(),
        nn.Conv3d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 2, 1),
    )  # fmt: skip
    # label: data-parallel gpu sure; no-autocast gpu sure; cudnn-benchmark-off gpu sure; small-batch both maybe
    net = nn.DataParallel(net).to(device)  # label: data-parallel gpu sure
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    for epoch in range(3):
        for image, label in loader:
            image = image.to(device)  # label: sync-copy gpu sure
            optimizer.zero_grad()
            output = net(image)
            small = np.zeros((1, *output.shape[2:]))
            for number in range(len(label)):
                factors = [new / old for new, old in zip(output.shape[2:], label.shape[2:], strict=True)]
                # label: no-workers both sure
                small[number] = ndimage.zoom(label[number, 0].numpy(), factors, order=0)
            # label: late-cast both sure; unpinned-memory gpu maybe
            target = torch.tensor(small).to(torch.int64).to(device)
            loss = nn.functional.cross_entropy(output, target)
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())  # label: host-read gpu sure


if __name__ == "__main__":
    main()
