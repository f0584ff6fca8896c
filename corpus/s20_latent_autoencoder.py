"""Autoencoder and discriminator: anomaly detection left on, more slices validated than trained."""
# verdict: validation

import copy

import numpy as np
import torch
from common import UNet, device, folder, volume
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter


class Cached(Dataset):
    def __init__(self, count):
        random = np.random.default_rng(0)
        self.volumes = [torch.from_numpy(volume(random, (48, 48, 24))[0]) for _ in range(count)]

    def __len__(self):
        return len(self.volumes)

    def __getitem__(self, index):
        return copy.deepcopy(self.volumes[index])


def main():
    torch.autograd.set_detect_anomaly(True)  # label: anomaly-detection both sure
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # label: no-workers both sure; heavy-items both likely; unpinned-memory gpu sure; uncached-items both maybe
    loader = DataLoader(Cached(10), batch_size=1, shuffle=True, num_workers=0)
    held = DataLoader(Cached(14), batch_size=1, num_workers=0)
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu sure; deterministic gpu sure; small-batch both maybe
    # label: small-batch both maybe; no-autocast gpu sure; cudnn-benchmark-off gpu sure; deterministic gpu sure
    net = UNet(2, 1, 1, (16, 32)).to(device)
    judge = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(), nn.Conv2d(8, 1, 4, 2, 1)).to(device)
    perceive = nn.Conv2d(1, 16, 5, padding=2).requires_grad_(False).to(device)
    ours = torch.optim.Adam(net.parameters(), 1e-4)
    theirs = torch.optim.Adam(judge.parameters(), 1e-4)
    writer, step = SummaryWriter(str(folder("log"))), 0
    for _ in range(8):
        net.train()
        for whole in loader:
            chosen = np.random.choice(24, 6, replace=False)
            image = whole[0].permute(2, 0, 1)[chosen, None].to(device)
            ours.zero_grad(set_to_none=True)
            made = net(image)
            pixels = nn.functional.l1_loss(made, image)
            loss = (
                pixels
                + (perceive(made) - perceive(image)).abs().mean()
                + 0.1 * nn.functional.softplus(-judge(made)).mean()
            )
            loss.backward()  # label: needless-grad both sure
            ours.step()
            theirs.zero_grad(set_to_none=True)  # label: needless-grad both sure
            judged = nn.functional.softplus(judge(made.detach())).mean() + nn.functional.softplus(-judge(image)).mean()
            judged.backward()
            theirs.step()
            step += 1
            writer.add_scalar("loss", loss, step)  # label: host-read gpu sure; step-log both likely
            writer.add_scalar("pixels", pixels, step)  # label: host-read gpu sure; step-log both likely
        net.eval()  # label: validation-share both sure
        with torch.no_grad():
            for whole in held:
                image = whole[0].permute(2, 0, 1)[:, None].to(device)
                made = net(image)  # label: validation-share both sure
                (perceive(made) - perceive(image)).abs().mean()
        torch.save(net.state_dict(), folder("weights") / "last.pt")  # label: checkpoint-stall both likely


if __name__ == "__main__":
    main()
