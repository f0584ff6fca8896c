"""GAN of two optimizers: targets built by NumPy in each step, gradients that are thrown away, four reads."""
# verdict: compute

import sys

import numpy as np
import torch
from common import UNet, device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = Image.open(self.paths[index])
        halves = [np.asarray(picture.crop((x, 0, x + 64, 64)).resize((128, 128), Image.BICUBIC)) for x in (0, 64)]
        if np.random.random() < 0.5:
            halves = [half[:, ::-1] for half in halves]
        return [torch.from_numpy(half.transpose(2, 0, 1).copy()).float() / 127.5 - 1 for half in halves]


def patch_gan():
    return nn.Sequential(
        nn.Conv2d(6, 16, 4, 2, 1), nn.LeakyReLU(0.2),
        # label: conv-bias-before-norm both sure
        nn.Conv2d(16, 32, 4, 2, 1), nn.InstanceNorm2d(32), nn.LeakyReLU(0.2),
        # label: conv-bias-before-norm both sure
        nn.Conv2d(32, 64, 4, 2, 1), nn.InstanceNorm2d(64), nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 3, padding=1),
    )  # fmt: skip


def main():
    paths = write_images(folder("pairs"), 60, (128, 64), "jpg")
    # label: many-workers both sure; small-batch both likely; uncached-items both likely; unpinned-memory gpu sure
    # label: no-persistent-workers both maybe; heavy-items both maybe
    loader = DataLoader(Pairs(paths), batch_size=1, shuffle=True, num_workers=8)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu sure; small-batch both likely
    generator = UNet(2, 3, 3, (32, 64, 128), norm=nn.InstanceNorm2d).to(device)
    judge = patch_gan().to(device)
    ours = torch.optim.Adam(generator.parameters(), 2e-4)
    theirs = torch.optim.Adam(judge.parameters(), 2e-4)
    for epoch in range(2):
        for number, (real_a, real_b) in enumerate(loader):
            real_a, real_b = real_a.to(device), real_b.to(device)
            # label: recreate both sure; late-cast both maybe
            valid = torch.from_numpy(np.ones((1, 1, 16, 16))).float().to(device)
            # label: recreate both sure; late-cast both maybe
            fake = torch.from_numpy(np.zeros((1, 1, 16, 16))).float().to(device)
            ours.zero_grad()
            made = generator(real_b)
            scores = judge(torch.cat([made, real_b], 1))
            pixels = nn.functional.l1_loss(made, real_a)
            loss = nn.functional.mse_loss(scores, valid) + 100 * pixels
            loss.backward()  # label: needless-grad both sure
            ours.step()
            theirs.zero_grad()  # label: needless-grad both sure
            real = nn.functional.mse_loss(judge(torch.cat([real_a, real_b], 1)), valid)
            faked = nn.functional.mse_loss(judge(torch.cat([made.detach(), real_b], 1)), fake)
            judged = 0.5 * (real + faked)
            judged.backward()
            theirs.step()
            values = judged.item(), loss.item(), pixels.item(), real.item()  # label: host-read gpu sure
            sys.stdout.write(f"\r{epoch} {number} {values}")  # label: step-log both maybe
            if number % 100 == 99:
                generator(real_b)


if __name__ == "__main__":
    main()
