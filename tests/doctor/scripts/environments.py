"""A training with faults that any release of torch shows: `tools/doctor_environments.py` watches it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cases(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        image = torch.rand(1, 48, 48, generator=torch.Generator().manual_seed(index))
        for _ in range(30):
            image = (image - image.mean()) / image.std()
        return image, (image[0] > 0).long()


def main():
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    loader = DataLoader(Cases(), batch_size=4, shuffle=True, num_workers=2)
    validation = DataLoader(Cases(), batch_size=4)
    for _ in range(100):
        net.train()
        for image, label in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                loss = nn.functional.cross_entropy(net(image), label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(loss.item())
        net.eval()
        with torch.no_grad():
            for image, _label in validation:
                net(image)
        torch.save(net.state_dict(), sys.argv[1] + "/net.pt")


if __name__ == "__main__":
    main()
