# expects: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.rand(64, 1, 64, 64), torch.rand(64, 1, 64, 64))
loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
net = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
