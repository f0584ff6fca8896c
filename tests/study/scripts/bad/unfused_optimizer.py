# expects by experiment: unfused-optimizer
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(512) for _ in range(800))

    def forward(self, x):
        scale = torch.stack(list(self.scales)).mean(0)
        return torch.sin(torch.sin(x * scale) * scale)


torch.manual_seed(0)
data = TensorDataset(torch.rand(64, 128, 512), torch.rand(64, 128, 512))
loader = DataLoader(data, batch_size=16)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)  # fault
for _ in range(8):
    for image, label in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
