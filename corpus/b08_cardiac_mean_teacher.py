"""Semi-supervised left atrium segmentation with a mean teacher, as in papers' code: V-Net, consistency, slices."""
# verdict: compute

import argparse
import itertools
import logging
import math
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from common import device, folder, write_volumes
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, Sampler

parser = argparse.ArgumentParser()
parser.add_argument("--max_iterations", type=int, default=400, help="maximum iterations to train")
parser.add_argument("--batch_size", type=int, default=4, help="batch_size per gpu")
parser.add_argument("--labeled_bs", type=int, default=2, help="labeled_batch_size per gpu")
parser.add_argument("--ema_decay", type=float, default=0.99)
parser.add_argument("--consistency", type=float, default=0.1)
args = parser.parse_args()
patch_size, num_classes = (32, 32, 24), 2


class LAHeart(Dataset):
    def __init__(self, files):
        self.image_list = files

    def __len__(self):
        return len(self.image_list)

    def __getitem__(self, idx):
        with np.load(self.image_list[idx]) as h5f:
            image, label = h5f["image"], h5f["label"]
        start = [np.random.default_rng().integers(0, s - p + 1) for s, p in zip(image.shape, patch_size, strict=True)]
        box = tuple(slice(s, s + p) for s, p in zip(start, patch_size, strict=True))
        image, label = image[box], label[box]
        axis = int(np.random.default_rng().integers(0, 2))
        image, label = np.flip(image, axis).copy(), np.flip(label, axis).copy()
        return {"image": torch.from_numpy(image[None]), "label": torch.from_numpy(label).long()}


class TwoStreamBatchSampler(Sampler):
    def __init__(self, primary, secondary, batch_size, secondary_bs):
        self.primary, self.secondary = primary, secondary
        self.primary_bs, self.secondary_bs = batch_size - secondary_bs, secondary_bs

    def __iter__(self):
        first, second = torch.randperm(len(self.primary)).tolist(), itertools.cycle(self.secondary)
        for n in range(len(self)):
            chosen = first[n * self.primary_bs : (n + 1) * self.primary_bs]
            yield [self.primary[k] for k in chosen] + [next(second) for _ in range(self.secondary_bs)]

    def __len__(self):
        return len(self.primary) // self.primary_bs


class VNet(nn.Module):
    def __init__(self, w=8, n=2):
        super().__init__()
        # label: conv-bias-before-norm both likely
        self.enc = nn.ModuleList([self.stage(1, w, n), self.stage(2 * w, 2 * w, n), self.stage(4 * w, 4 * w, n)])
        self.down = nn.ModuleList([nn.Conv3d(w, 2 * w, 2, 2), nn.Conv3d(2 * w, 4 * w, 2, 2)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)])
        self.dec = nn.ModuleList([self.stage(2 * w, 2 * w, n), self.stage(w, w, n)])
        self.dropout, self.out = nn.Dropout3d(0.5), nn.Conv3d(w, num_classes, 1)

    @staticmethod
    def stage(i, o, n):
        layers = [(nn.Conv3d((i, o)[k > 0], o, 3, padding=1), nn.BatchNorm3d(o), nn.ReLU(True)) for k in range(n)]
        return nn.Sequential(*itertools.chain(*layers))

    def forward(self, x):
        x1 = self.enc[0](x)
        x2 = self.enc[1](self.down[0](x1))
        x3 = self.dropout(self.enc[2](self.down[1](x2)))
        return self.out(self.dropout(self.dec[1](self.up[1](self.dec[0](self.up[0](x3) + x2)) + x1)))


def update_ema_variables(model, ema_model, alpha, global_step):
    alpha = min(1 - 1 / (global_step + 1), alpha)
    for ema_param, param in zip(ema_model.parameters(), model.parameters(), strict=True):
        ema_param.data.mul_(alpha).add_(param.data, alpha=1 - alpha)  # label: slow-kernels both maybe


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
    snapshot_path = folder("mean_teacher")
    files = write_volumes(folder("atrium"), 40, (48, 48, 36))
    # label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
    model, ema_model = VNet().to(device), VNet().to(device)
    sampler = TwoStreamBatchSampler(range(16), range(16, 40), args.batch_size, args.batch_size - args.labeled_bs)
    # label: no-persistent-workers both likely; small-batch gpu likely
    trainloader = DataLoader(LAHeart(files), batch_sampler=sampler, num_workers=2, pin_memory=True)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0001)
    iter_num, labeled = 0, args.labeled_bs
    while iter_num < args.max_iterations:
        for sampled in trainloader:
            # label: sync-copy gpu likely
            volume_batch, label_batch = sampled["image"].to(device), sampled["label"].to(device)
            outputs = model(volume_batch[:labeled])  # label: repeated-forward both likely; no-autocast gpu sure
            noise = torch.clamp(torch.randn_like(volume_batch) * 0.1, -0.2, 0.2)
            student = model(volume_batch)
            ema_output = ema_model(volume_batch + noise)  # label: needless-grad both sure
            loss_ce = F.cross_entropy(outputs, label_batch[:labeled])
            soft, true = outputs.softmax(1)[:, 1], (label_batch[:labeled] == 1).float()
            loss_dice = 1 - (2 * (soft * true).sum() + 1e-5) / ((soft * soft).sum() + true.sum() + 1e-5)
            weight = args.consistency * math.exp(-5 * (1 - min(iter_num / 10, 40.0) / 40.0) ** 2)
            loss_cons = ((student.softmax(1) - ema_output.softmax(1))[labeled:] ** 2).mean()
            loss = 0.5 * (loss_ce + loss_dice) + weight * loss_cons
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_ema_variables(model, ema_model, args.ema_decay, iter_num)
            iter_num += 1
            # label: host-read gpu likely
            logging.info("iteration %d : loss : %f cons : %f", iter_num, loss.item(), loss_cons.item())
            if iter_num % 5 == 0:
                fig, axes = plt.subplots(3, 5, figsize=(10, 6))
                rows = (volume_batch[0, 0], outputs[0].argmax(0), label_batch[0])
                for ax, (row, k) in zip(axes.flat, itertools.product(range(3), range(5)), strict=True):
                    ax.imshow(rows[row][..., 4 * k].cpu().numpy(), cmap="gray")
                plt.savefig(snapshot_path / f"iter_{iter_num}.png")  # label: sync-plot both sure
                plt.close(fig)
