# expects by experiment: conv-bias-before-norm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.rand(128, 1, 64, 64), torch.rand(128, 1, 64, 64))
loader = DataLoader(data, batch_size=4)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),  # fault
    nn.InstanceNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1, bias=False),
    nn.InstanceNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 1, 1),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for image, label in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(image), label)
    loss.backward()
    optimizer.step()
