# expects by experiment: no-autocast
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.rand(96, 512), torch.rand(96, 512))
loader = DataLoader(data, batch_size=32)
net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512))  # fault
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(10):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
