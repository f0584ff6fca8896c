# expects by experiment: few-workers
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.rand(1, 64, 64), torch.rand(1, 64, 64)


torch.manual_seed(0)
loader = DataLoader(Slow(), batch_size=4, num_workers=1, persistent_workers=True, pin_memory=True)  # fault
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
