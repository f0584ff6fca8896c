"""Registration of whole volumes: a generator unpacks two files per step in the training's own process."""
# verdict: input

import numpy as np
import torch
from common import UNet, device, folder, write_volumes
from torch import nn

SIDE = 16


def pairs(paths):
    zeros = np.zeros((1, 3, SIDE, SIDE, SIDE))
    while True:
        volumes = []
        for path in np.random.choice(paths, 2):
            with np.load(path) as file:
                # label: no-workers both sure; heavy-items both sure; uncached-items both sure
                volumes.append(np.repeat(file["image"][None, None, ::6, ::6, ::6], 1, 0))
        yield volumes, [volumes[1], zeros]


class Warp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = UNet(3, 2, 3, (4, 8))
        axes = [torch.linspace(-1, 1, SIDE)] * 3
        self.register_buffer("grid", torch.stack(torch.meshgrid(*axes, indexing="ij")[::-1], -1)[None])

    def forward(self, moving, fixed):
        flow = self.net(torch.cat([moving, fixed], 1)) * 0.01
        for _ in range(3):
            flow = flow + nn.functional.grid_sample(flow, self.grid + flow.permute(0, 2, 3, 4, 1), align_corners=True)
        return nn.functional.grid_sample(moving, self.grid + flow.permute(0, 2, 3, 4, 1), align_corners=True), flow


def main():
    torch.backends.cudnn.deterministic = True
    paths = write_volumes(folder("registration"), 12, (6 * SIDE, 6 * SIDE, 6 * SIDE), compressed=True)
    feed = pairs([str(path) for path in paths])
    net = Warp().to(device)  # label: no-autocast gpu sure; deterministic gpu sure; cudnn-benchmark-off gpu sure
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for epoch in range(2):
        kept = []
        for _ in range(30):
            # label: no-workers both sure; heavy-items both sure; uncached-items both sure
            inputs, targets = next(feed)
            inputs = [torch.from_numpy(each).to(device).float() for each in inputs]  # label: unpinned-memory gpu sure
            # label: unpinned-memory gpu sure; late-cast both sure; repeat-work both sure
            targets = [torch.from_numpy(each).to(device).float() for each in targets]
            moved, flow = net(*inputs)
            losses = [((moved - targets[0]) ** 2).mean(), (flow**2).mean()]
            kept.append([each.item() for each in losses])  # label: host-read gpu sure
            loss = sum(losses)
            kept.append(loss.item())  # label: host-read gpu sure
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, np.mean(kept[1::2]))


if __name__ == "__main__":
    main()
