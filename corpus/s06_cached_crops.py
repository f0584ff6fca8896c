"""All volumes in memory, copied whole for each item; the foreground is searched again at every crop."""
# verdict: input

import copy

import numpy as np
import torch
from common import UNet, device, folder, volume
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    def __init__(self, count):
        random = np.random.default_rng(0)
        self.items = [dict(zip(("image", "label"), volume(random, (128, 128, 128)), strict=True)) for _ in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = copy.deepcopy(self.items[index])
        places = np.argwhere(item["label"] > 0)
        background = np.argwhere(item["label"] == 0)
        crops = []
        for number in range(4):
            chosen = places if number % 2 else background
            corner = np.clip(chosen[np.random.randint(len(chosen))] - 8, 0, 128 - 16)
            box = tuple(slice(c, c + 16) for c in corner)
            crops.append((item["image"][None][(slice(None), *box)].copy(), item["label"][box].astype(np.int64)))
        return torch.from_numpy(np.stack([c[0] for c in crops])), torch.from_numpy(np.stack([c[1] for c in crops]))


def main():
    torch.backends.cudnn.benchmark = True
    # label: uncached-items both sure; heavy-items both likely; no-persistent-workers both sure
    # label: many-workers both sure
    loader = DataLoader(Cached(8), batch_size=1, shuffle=True, num_workers=8, pin_memory=True)
    net = UNet(3, 1, 2, (4, 8, 16), norm=nn.InstanceNorm3d).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for epoch in range(12):
        for image, label in loader:
            image, label = image[0].to(device), label[0].to(device)  # label: sync-copy gpu sure
            for parameter in net.parameters():
                parameter.grad = None
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(net(image), label)
            loss.backward()
            optimizer.step()
            print(epoch, loss.item())  # label: host-read gpu sure
        if epoch % 6 == 5:
            torch.save(net.state_dict(), folder("weights") / "last.pt")


if __name__ == "__main__":
    main()
