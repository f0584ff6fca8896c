"""Control: all on the device beforehand, one thread ahead, plain tensors, autocast."""
# verdict: compute
# control

import numpy as np
import torch
from common import UNet, device, volume
from monai.data import Dataset, ThreadDataLoader
from torch import nn


class Crops(Dataset):
    def __init__(self, count):
        random = np.random.default_rng(0)
        self.cases = [
            [torch.from_numpy(each).to(device) for each in volume(random, (64, 64, 64))] for _ in range(count)
        ]
        self.places = [label.nonzero() for _, label in self.cases]

    def __len__(self):
        return len(self.cases)

    def __getitem__(self, index):
        (image, label), places = self.cases[index], self.places[index]
        crops = []
        for _ in range(4):
            corner = (places[np.random.randint(len(places))] - 12).clamp(0, 64 - 24).tolist()
            box = tuple(slice(c, c + 24) for c in corner)
            crops.append((image[box][None], label[box].long()))
        return torch.stack([c[0] for c in crops]), torch.stack([c[1] for c in crops])


def main():
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    loader = ThreadDataLoader(Crops(32), batch_size=2, shuffle=True, num_workers=0)
    # label: conv-bias-before-norm both sure; cudnn-benchmark-off gpu sure; deterministic gpu sure
    # label: no-autocast cpu maybe
    net = UNet(3, 1, 2, (8, 16, 32), bias=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    for epoch in range(10):
        for image, label in loader:
            image, label = image.to(device).flatten(0, 1), label.to(device).flatten(0, 1)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(image), label)
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())  # label: host-read gpu sure
        if epoch % 5 == 4:
            net.eval()
            with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
                for image, _ in loader.dataset.cases[:2]:
                    net(image[None, None])  # label: validation-share both likely
            net.train()


if __name__ == "__main__":
    main()
