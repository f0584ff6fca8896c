# expects by experiment: uncached-transforms
import time

import numpy as np
import torch
from monai.data import DataLoader, Dataset
from monai.transforms import Compose, EnsureTyped, Lambdad, RandFlipd
from torch import nn


def resampled(image):
    time.sleep(0.01)  # As long as reading and resampling would take.
    return image


torch.manual_seed(0)
data = [{"image": np.full((1, 64, 64), index / 16, np.float32)} for index in range(16)]
transform = Compose([Lambdad("image", resampled), EnsureTyped("image", track_meta=False), RandFlipd("image", prob=0.5)])
dataset = Dataset(data, transform)
loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)  # fault
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(batch["image"]), batch["image"])
        loss.backward()
        optimizer.step()
