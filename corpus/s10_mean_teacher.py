"""Mean teacher on slices: a teacher nobody uses yet, its average by a loop, volumes validated slice by slice."""
# verdict: validation

import numpy as np
import torch
from common import UNet, device, folder, volume
from scipy import ndimage
from torch.utils.data import DataLoader, Dataset


class Slices(Dataset):
    def __init__(self, count):
        self.root, self.count, random = folder("slices"), count, np.random.default_rng(0)
        for number in range(count):
            np.save(self.root / f"{number}.npy", np.stack(volume(random, (72, 72))))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image, label = np.load(self.root / f"{index}.npy")
        if np.random.rand() < 0.5:
            image, label = image[::-1], label[::-1]
        image, label = ndimage.zoom(image, 64 / 72, order=0), ndimage.zoom(label, 64 / 72, order=0)
        return torch.from_numpy(image[None].copy()).float(), torch.from_numpy(label.copy()).long()


def update(student, teacher, alpha):
    for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        ours.data.mul_(alpha).add_(theirs.data, alpha=1 - alpha)  # label: python-loop both sure


def dice(scores, label):
    loss = 0.0
    for number in range(2):
        target = (label == number).float()
        one = 1 - 2 * (scores[:, number] * target).sum() / (scores[:, number] + target).sum()
        one.item()  # label: host-read gpu sure
        loss = loss + one
    return loss / 2


def hausdorff(one, other):
    if not one.any() or not other.any():
        return 0.0
    outside = ndimage.distance_transform_edt(~other)
    return float(np.percentile(outside[one], 95))


def validate(net, volumes):
    net.eval()  # label: validation-share both sure
    for image, label in volumes:
        result = np.zeros_like(label)
        for index in range(len(image)):
            piece = ndimage.zoom(image[index], 64 / 96, order=0)
            with torch.no_grad():
                # label: host-read gpu likely; host-metric both sure; validation-share both sure
                output = net(torch.from_numpy(piece)[None, None].to(device)).argmax(1)[0].cpu().numpy()
            # label: host-metric both sure; validation-share both sure
            result[index] = ndimage.zoom(output, 96 / 64, order=0)
        for _ in range(3):
            hausdorff(result > 0, label > 0)  # label: host-metric both sure
    net.train()


def main():
    torch.backends.cudnn.deterministic = True
    # label: heavy-items both likely; many-workers both maybe
    loader = DataLoader(
        Slices(96), batch_size=12, shuffle=True, num_workers=1, pin_memory=True, persistent_workers=True
    )
    # label: no-autocast gpu sure; deterministic gpu sure; cudnn-benchmark-off gpu sure
    net, teacher = UNet(2, 1, 2, (8, 16, 32)).to(device), UNet(2, 1, 2, (8, 16, 32)).to(device)
    random = np.random.default_rng(1)
    volumes = [volume(random, (16, 96, 96)) for _ in range(6)]
    optimizer, step = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9), 0
    for _ in range(8):
        for image, label in loader:
            image, label = image.to(device), label.to(device)  # label: sync-copy gpu sure
            noise = torch.clamp(torch.randn_like(image) * 0.1, -0.2, 0.2)
            scores = net(image).softmax(1)
            with torch.no_grad():
                soft = teacher(image + noise).softmax(1)  # label: needless-forward both sure
            consistency = 0.0 if step < 1000 else ((scores - soft) ** 2).mean()
            overlap = dice(scores, label)  # label: host-read gpu sure
            loss = overlap + consistency
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update(net, teacher, 0.99)  # label: python-loop both sure
            step += 1
            print(step, loss.item(), overlap.item())  # label: host-read gpu sure; step-log both likely
            if step % 3 == 0:
                validate(net, volumes)  # label: validation-share both sure; host-metric both sure


if __name__ == "__main__":
    main()
