# expects by experiment: uncached-items
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Resampled(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        time.sleep(0.01)  # As long as reading and resampling would take, with the same result in every epoch.
        return torch.full((1, 64, 64), index / 16), torch.full((1, 64, 64), index / 32)


torch.manual_seed(0)
loader = DataLoader(Resampled(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)  # fault
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
