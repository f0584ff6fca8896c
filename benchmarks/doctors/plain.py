"""An ordinary training loop that knows nothing of Hasten: `... plain STEPS FILE` writes the seconds of each step."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from torch.utils.data import DataLoader, TensorDataset


def main(steps: int, times: Path) -> None:
    torch.manual_seed(0)
    cases = TensorDataset(torch.randn(20, 1, 32, 32, 32), torch.randint(0, 3, (20, 1, 32, 32, 32)))
    net = UNet(3, 1, 3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2, norm="instance")
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    marks = [time.perf_counter()]
    while len(marks) <= steps:
        for image, label in DataLoader(cases, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss_function(net(image), label).backward()
            optimizer.step()
            marks.append(time.perf_counter())
    times.write_text("".join(f"{after - before}\n" for before, after in itertools.pairwise(marks)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
