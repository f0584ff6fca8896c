"""Nuclei in two branches: distance maps by a Python loop, pictures prepared in every step, Sobel kernels per call."""
# verdict: compute

import numpy as np
import torch
from common import UNet, device, folder
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 96


class Nuclei(Dataset):
    def __init__(self, count):
        self.root, self.count, random = folder("blobs"), count, np.random.default_rng(0)
        for number in range(count):
            blobs = np.zeros((SIDE, SIDE), np.int32)
            for blob in range(1, 16):
                y, x = random.integers(6, SIDE - 6, 2)
                blobs[y - 5 : y + 5, x - 5 : x + 5] = blob
            image = np.clip(random.normal(100 + 50 * (blobs > 0)[..., None], 20, (SIDE, SIDE, 3)), 0, 255)
            np.save(self.root / f"{number}.npy", np.dstack([image.astype(np.int32), blobs]))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        both = np.load(self.root / f"{index}.npy").astype(np.float32)
        angle = np.random.uniform(-0.5, 0.5)
        turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        both = np.dstack(
            [ndimage.affine_transform(both[..., c], turn[:2, :2], order=3 if c < 3 else 0) for c in range(4)]
        )
        blobs, maps = both[..., 3].astype(np.int32), np.zeros((2, SIDE, SIDE), np.float32)
        image = ndimage.gaussian_filter(both[..., :3], (3, 3, 0)).astype(np.uint8)
        for blob in np.unique(blobs)[1:]:
            ys, xs = np.nonzero(blobs == blob)
            maps[0][blobs == blob], maps[1][blobs == blob] = (ys - ys.mean()) / 10, (xs - xs.mean()) / 10
        return torch.from_numpy(image), torch.from_numpy((blobs > 0).astype(np.int64)), torch.from_numpy(maps)


def gradient(maps):
    axis = torch.arange(-2.0, 3.0)  # label: recreate both sure
    vertical, horizontal = torch.meshgrid(axis, axis, indexing="ij")  # label: recreate both sure
    weight = (horizontal / (horizontal**2 + vertical**2 + 1e-8))[None, None].to(device)  # label: recreate both sure
    return nn.functional.conv2d(maps[:, :1], weight, padding=2)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.maps = UNet(2, 3, 8, (4, 8)), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x = self.body(x)
        return self.kind(x), self.maps(x)


def step(net, optimizer, image, kind, maps, track):
    image = image.to(device).float().permute(0, 3, 1, 2) / 255
    kind, maps = kind.to(device), maps.to(device)
    scores, result = net(image)
    losses = {
        "kind": nn.functional.cross_entropy(scores, kind), "maps": nn.functional.mse_loss(result, maps),
        "gradient": nn.functional.mse_loss(gradient(result), gradient(maps)),  # label: recreate both sure
    }  # fmt: skip
    for name, loss in losses.items():
        track[name] = loss.cpu().item()  # label: host-read gpu sure
    total = sum(losses.values())
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    track["total"] = total.cpu().item()  # label: host-read gpu sure
    shown = scores.detach().softmax(1).permute(0, 2, 3, 1).contiguous()
    # label: host-metric both sure; host-read gpu sure
    track["pictures"] = [each.cpu().numpy() for each in (shown[:2], result[:2].detach(), image[:2], kind[:2])]


def main():
    # label: heavy-items both sure; many-workers both sure; unpinned-memory gpu sure; no-persistent-workers both maybe
    loader = DataLoader(Nuclei(96), batch_size=4, shuffle=True, num_workers=8)
    held = DataLoader(Nuclei(8), batch_size=4)
    # label: data-parallel gpu sure; no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = nn.DataParallel(Branches()).to(device)
    optimizer, track = torch.optim.Adam(net.parameters(), lr=1e-4), {}
    for epoch in range(2):
        net.train()
        for image, kind, maps in loader:
            step(net, optimizer, image, kind, maps, track)
        net.eval()  # label: validation-share both likely
        kept = []
        with torch.no_grad():
            for image, _, _ in held:
                # label: validation-share both likely; host-metric both maybe
                kept.append([each.cpu().numpy() for each in net(image.to(device).float().permute(0, 3, 1, 2))])
        print(epoch, track["total"])


if __name__ == "__main__":
    main()
