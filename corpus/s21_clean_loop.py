"""Control: nothing is wrong. Tensors in memory, crops on the device, values read every tenth step."""
# verdict: compute
# control

import numpy as np
import torch
from common import UNet, device, volume
from torch import nn


def main():
    torch.backends.cudnn.benchmark = True
    random = np.random.default_rng(0)
    cases = [volume(random, (256, 256)) for _ in range(16)]
    images = torch.stack([torch.from_numpy(image) for image, _ in cases])[:, None].to(device)
    labels = torch.stack([torch.from_numpy(label) for _, label in cases]).long().to(device)
    net = UNet(2, 1, 2, (16, 32, 64)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    for step in range(120):
        rows = torch.randint(16, (8,), device=device)
        top, left = (int(v) for v in random.integers(0, 256 - 96, 2))
        image, label = images[rows, :, top : top + 96, left : left + 96], labels[rows, top : top + 96, left : left + 96]
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(image), label)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(step, loss.item())


if __name__ == "__main__":
    main()
