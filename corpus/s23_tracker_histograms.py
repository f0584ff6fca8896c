"""Histograms of every weight sent to the tracker in each step, more work than the step itself."""
# verdict: compute|launch|sync

import numpy as np
import torch
from common import UNet, device, volume
from torch import nn


class Histogram:
    def __init__(self, values, bins=64):
        self.counts, self.edges = np.histogram(values, bins=bins)


class Run:
    def __init__(self):
        self.kept = []

    def log(self, values):
        self.kept.append(values)


def main():
    torch.backends.cudnn.benchmark = True
    random, run = np.random.default_rng(0), Run()
    cases = [volume(random, (48, 48)) for _ in range(16)]
    images = torch.stack([torch.from_numpy(image) for image, _ in cases])[:, None].to(device)
    labels = torch.stack([torch.from_numpy(label) for _, label in cases]).long().to(device)
    net = UNet(2, 1, 2, (16, 32, 64)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for _ in range(100):
        rows = torch.randint(16, (8,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        # label: histograms both sure; host-metric both maybe; host-read gpu maybe
        run.log({name: Histogram(weight.detach().cpu().numpy()) for name, weight in net.named_parameters()})


if __name__ == "__main__":
    main()
