"""Lung nodules in CT chunks with a TrainingApp class, as in a textbook: crops per candidate, epoch metrics."""
# verdict: validation

import argparse
import datetime
import shutil
from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
from common import device, folder, write_volumes
from torch.utils.data import DataLoader, Dataset

Candidate = namedtuple("Candidate", "path centre")
METRICS_LOSS, METRICS_TP, METRICS_FN, METRICS_FP = range(4)


class NoduleDataset(Dataset):
    def __init__(self, candidates, width=24, augment=False):
        self.candidates, self.width, self.augment = candidates, width, augment

    def __len__(self):
        return len(self.candidates)

    def __getitem__(self, ndx):
        cand = self.candidates[ndx]
        ct = np.load(cand.path)
        box = tuple(slice(c - self.width // 2, c + self.width // 2) for c in cand.centre)
        image, label = torch.from_numpy(ct["image"][box])[None], torch.from_numpy(ct["label"][box]).float()[None]
        if self.augment:
            dims = [d for d in (1, 2, 3) if torch.rand(()) > 0.5]
            image, label = image.flip(dims), label.flip(dims)
        return image.contiguous(), label.contiguous(), ndx


class LunaBlock(nn.Module):
    def __init__(self, in_channels, conv_channels):
        super().__init__()
        self.conv1 = nn.Conv3d(in_channels, conv_channels, kernel_size=3, padding=1, bias=True)
        self.conv2 = nn.Conv3d(conv_channels, conv_channels, kernel_size=3, padding=1, bias=True)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.conv1(x))))


class NoduleUNet(nn.Module):
    def __init__(self, w=8):
        super().__init__()
        self.tail_batchnorm, self.pool, self.up = nn.BatchNorm3d(1), nn.MaxPool3d(2), nn.Upsample(scale_factor=2)
        self.block1, self.block2, self.block3 = LunaBlock(1, w), LunaBlock(w, 4 * w), LunaBlock(4 * w, 16 * w)
        self.block4, self.block5, self.head = LunaBlock(20 * w, 4 * w), LunaBlock(5 * w, w), nn.Conv3d(w, 1, 1)

    def forward(self, x):
        a = self.block1(self.tail_batchnorm(x))
        b = self.block2(self.pool(a))
        b = self.block4(torch.cat([self.up(self.block3(self.pool(b))), b], 1))
        return torch.sigmoid(self.head(self.block5(torch.cat([self.up(b), a], 1))))


class NoduleTrainingApp:
    def __init__(self, sys_argv=None):
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", default=4, type=int)
        self.cli_args, self.workers = parser.parse_args(sys_argv), 2
        self.models_dir = folder("luna-models")
        files = write_volumes(folder("luna"), 8, (64, 64, 64))
        random = np.random.default_rng(1)
        found = [Candidate(path, tuple(random.integers(12, 52, 3))) for path in files for _ in range(5)]
        self.train_list, self.val_list = found[:28], found[28:]
        # label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe
        self.model = NoduleUNet().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.total_steps = 0

    def init_dl(self, candidates, augment):
        dataset, size, workers = NoduleDataset(candidates, augment=augment), self.cli_args.batch_size, self.workers
        # label: no-persistent-workers both sure; small-batch gpu likely; uncached-items both maybe
        return DataLoader(dataset, size, shuffle=augment, num_workers=workers, pin_memory=device.type == "cuda")

    def compute_batch_loss(self, batch, metrics):
        image, label = (one.to(device, non_blocking=True) for one in batch[:2])
        prediction = self.model(image)  # label: no-autocast gpu sure
        loss = self.dice_loss(prediction, label)
        fn_loss = self.dice_loss(self.model(image) * label, label)  # label: repeated-forward both sure
        hard = (prediction.detach() > 0.5).float()
        for i, k in enumerate(batch[2].tolist()):
            metrics[METRICS_LOSS, k] = loss[i].item()  # label: host-read gpu sure
            metrics[METRICS_TP, k] = (hard[i] * label[i]).sum().item()
            metrics[METRICS_FN, k] = ((1 - hard[i]) * label[i]).sum().item()
            metrics[METRICS_FP, k] = (hard[i] * (1 - label[i])).sum().item()
        return loss.mean() + fn_loss.mean() * 8

    def dice_loss(self, prediction, label, dims=(1, 2, 3, 4)):
        return 1 - (2 * (prediction * label).sum(dims) + 1) / (prediction.sum(dims) + label.sum(dims) + 1)

    def do_validation(self, candidates):
        metrics = torch.zeros(4, len(candidates))
        self.model.eval()
        for batch in self.init_dl(candidates, augment=False):
            self.compute_batch_loss(batch, metrics)  # label: validation-graph both sure
        return metrics

    def log(self, epoch, mode, m):
        tp, fn, fp = (m[k].sum().item() for k in (METRICS_TP, METRICS_FN, METRICS_FP))
        recall, precision = tp / max(tp + fn, 1), tp / max(tp + fp, 1)
        print(f"{datetime.datetime.now():%H:%M:%S} E{epoch} {mode:5} {m[METRICS_LOSS].mean():.4f} loss, "
              f"{precision:.4f} precision, {recall:.4f} recall, step {self.total_steps}", flush=True)  # fmt: skip
        return recall

    def main(self):
        for epoch in range(1, 17):
            metrics = torch.zeros(4, len(self.train_list))
            self.model.train()
            for batch in self.init_dl(self.train_list, augment=True):
                self.optimizer.zero_grad()
                self.compute_batch_loss(batch, metrics).backward()
                self.optimizer.step()
                self.total_steps += 1
            self.log(epoch, "trn", metrics)
            self.log(epoch, "val", self.do_validation(self.val_list))  # label: validation-share both sure
            self.log(epoch, "trn_e", self.do_validation(self.train_list))  # label: training-cases-validated both sure
            path = self.models_dir / f"nodule_{epoch}.state"
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
            shutil.copyfile(path, path.with_name("latest.state"))  # label: checkpoint-stall both maybe


if __name__ == "__main__":
    NoduleTrainingApp().main()
