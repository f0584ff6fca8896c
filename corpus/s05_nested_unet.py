"""Nested U-Net on nuclei: the IoU of whole score maps on the host in every step."""
# verdict: compute

import numpy as np
import torch
from common import UNet, device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Nuclei(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = np.asarray(Image.open(path), np.float32) / 255
        mask = np.asarray(Image.open(path.with_name(f"{path.stem}_mask.png")), np.float32) / 255
        if np.random.rand() < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        image = image * np.random.uniform(0.8, 1.2)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()).float(), torch.from_numpy(mask[None].copy()).float()


def iou(output, target):
    output = torch.sigmoid(output).data.cpu().numpy()  # label: host-read gpu sure; host-metric both sure
    target = target.data.cpu().numpy()  # label: host-read gpu sure; host-metric both sure
    output, target = output > 0.5, target > 0.5
    return ((output & target).sum() + 1e-5) / ((output | target).sum() + 1e-5)


def main():
    torch.backends.cudnn.benchmark = True
    # label: many-workers both likely; no-persistent-workers both likely; uncached-items both likely
    # label: unpinned-memory gpu sure
    loader = DataLoader(
        Nuclei(write_images(folder("nuclei"), 160, (96, 96))), batch_size=8, shuffle=True, num_workers=4, drop_last=True
    )
    # label: conv-bias-before-norm both sure; no-autocast gpu sure; no-channels-last gpu likely
    net = UNet(2, 3, 1, (8, 16, 32), bias=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    for epoch in range(4):
        for image, mask in loader:
            image, mask = image.to(device), mask.to(device)
            output = net(image)
            loss = nn.functional.binary_cross_entropy_with_logits(output, mask)
            score = iou(output, mask)  # label: host-metric both sure; host-read gpu sure
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.item()  # label: host-read gpu sure
        print(epoch, total, score)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
