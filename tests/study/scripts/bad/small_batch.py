# expects by experiment: small-batch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(64, 64), torch.rand(64, 64)), batch_size=1)  # fault
net = nn.Sequential(*[layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
for image, label in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(image), label)
    loss.backward()
    optimizer.step()
