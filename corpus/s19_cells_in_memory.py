"""Cells held in memory; the batch is turned, scaled and cropped in the loop; autocast in float32."""
# verdict: compute

import numpy as np
import torch
from common import UNet, device, volume
from scipy import ndimage
from torch import nn


def random_crop(image, flows, random):
    angle, scale = random.uniform(-3, 3), random.uniform(0.8, 1.2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
    offset = np.array(image.shape) / 2 - turn @ np.array((48, 48))
    both = [ndimage.affine_transform(each, turn, offset, (96, 96), order=3) for each in (image, *flows)]
    return both[0], np.stack(both[1:])


def main():
    random = np.random.default_rng(0)
    images = [volume(random, (192, 192)) for _ in range(40)]
    cells = [(image / image.std(), np.stack([label.astype(np.float32)] * 3)) for image, label in images]
    # label: small-batch both sure; no-autocast gpu sure; cudnn-benchmark-off gpu maybe
    net = UNet(2, 1, 3, (4, 8)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    step = 0
    for epoch in range(3):
        for number in random.permutation(len(cells)):
            image, flows = random_crop(*cells[number], random)  # label: no-workers both sure; heavy-items both sure
            image = torch.from_numpy(image[None, None]).to(device).float()  # label: unpinned-memory gpu sure
            flows = torch.from_numpy(flows[None]).to(device).float()  # label: unpinned-memory gpu sure
            with torch.autocast(device.type, dtype=torch.float32, enabled=False):
                loss = nn.MSELoss()(net(image), 5 * flows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.item()  # label: host-read gpu sure
            step += 1
        print(epoch, total)


if __name__ == "__main__":
    main()
