# expects: nothing  flags: --for cuda
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.rand(64, 1, 64, 64), torch.rand(64, 1, 64, 64))
loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
held_out = DataLoader(data, batch_size=16, pin_memory=True)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def validate():
    net.eval()
    with torch.inference_mode():
        loss = torch.stack([nn.functional.mse_loss(net(image), label) for image, label in held_out]).mean()
    net.train()
    return loss


for epoch in range(6):
    total = torch.zeros(())
    for step, (image, label) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(net(image), label)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")
    print(f"mean {(total / len(loader)).item():.3f}")
    if epoch == 3:
        print(f"validation {validate().item():.3f}")
        torch.save(net.state_dict(), "/dev/null")
