"""Salient objects: double-precision items from one worker, cast in the loop; nine reads a step."""
# verdict: input

import numpy as np
import torch
from common import UNet, device, folder, write_images
from skimage import io, transform
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Objects(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image, mask = io.imread(path), io.imread(path.with_name(f"{path.stem}_mask.png"))
        image, mask = transform.resize(image, (160, 160)), transform.resize(mask, (160, 160), order=0)
        top, left = np.random.randint(0, 16, 2)
        image, mask = image[top : top + 144, left : left + 144], mask[top : top + 144, left : left + 144]
        image = (image / image.max() - 0.45) / 0.22
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(mask[None].copy()).double()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = UNet(2, 3, 8, (4, 8, 16), bias=True)
        self.heads = nn.ModuleList(nn.Conv2d(8, 1, 3, padding=1) for _ in range(7))

    def forward(self, x):
        x = self.body(nn.functional.avg_pool2d(x, 4))
        return [nn.functional.interpolate(head(x), scale_factor=4) for head in self.heads]


def main():
    paths = write_images(folder("objects"), 48, (360, 300))
    # label: few-workers cores2 sure; heavy-items both sure; uncached-items both sure; late-cast both sure
    # label: unpinned-memory gpu sure; no-persistent-workers both maybe
    loader = DataLoader(Objects(paths), batch_size=6, shuffle=True, num_workers=1)
    # label: conv-bias-before-norm both sure; no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = Nested().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(6):
        total = 0.0
        for image, mask in loader:
            # label: late-cast both sure
            image, mask = image.type(torch.FloatTensor).to(device), mask.type(torch.FloatTensor).to(device)
            optimizer.zero_grad()
            losses = [nn.functional.binary_cross_entropy_with_logits(each, mask) for each in net(image)]
            loss = sum(losses)
            print(" ".join(f"{each.item():.3f}" for each in losses))  # label: host-read gpu sure; step-log both maybe
            loss.backward()
            optimizer.step()
            total += loss.item()  # label: host-read gpu sure
            print(epoch, total)


if __name__ == "__main__":
    main()
