# expects: nothing  flags: torchrun; with an argument unequal-ranks
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
rank = torch.distributed.get_rank()
size = 64 if len(sys.argv) == 1 else 192 if rank else 48
data = TensorDataset(torch.rand(64, 1, size, size), torch.rand(64, 1, size, size))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), pin_memory=True)  # fault
net = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(10):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
torch.distributed.destroy_process_group()
