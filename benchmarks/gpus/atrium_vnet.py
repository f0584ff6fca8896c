"""V-Net as published for the left atrium, in plain PyTorch: `--cases FILE --out FILE`.

yulequan/UA-MT, train_LA.py, with all labels: convolutions of 3x3x3 with batch norm and ReLU, 16 to 256 channels, a
dropout in the middle and before the last layer; half cross-entropy, half Dice; SGD at 0.01 with momentum 0.9 and decay
1e-4, a tenth every 2,500 of 6,000 iterations; 4 patches of 112x112x80, each a crop from another case after quarter
turns and a flip of the first two axes, made by 4 processes. Different here: autocast (fp16 with a scaler on a GPU),
cases are read once and held in memory, validation windows overlap by a half, and what it logs at each iteration is left
out. FILE of the cases: rows [image, label] under "train" and "validation".
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from hasten.observe.clock import process_start_seconds
from hasten.observe.rundir import write_json

ITERATIONS, TENTH = 6000, 2500
BATCH = 4
Case = tuple[np.ndarray, np.ndarray]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", type=float, required=True, help="stop at this Dice")
    parser.add_argument("--max-seconds", type=float, required=True, help="stop then, counted from process start")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--validate-every", type=int, default=500)
    parser.add_argument("--patch", type=int, nargs=3, default=(112, 112, 80))
    parser.add_argument("--workers", type=int, default=4)
    train(parser.parse_args(argv))


class VNet(nn.Module):
    """Scores (B, 2, *S) of images (B, 1, *S) whose sides are multiples of 16."""

    def __init__(self, filters: int = 16) -> None:
        super().__init__()
        widths = [filters * 2**level for level in range(5)]
        counts = (1, 2, 3, 3, 3)
        self.down = nn.ModuleList(
            nn.Sequential(
                *(_block(nn.Conv3d(width // 2, width, 2, stride=2)) if level else ()),
                *_layers(count, width if level else 1, width),
            )
            for level, (count, width) in enumerate(zip(counts, widths, strict=True))
        )
        self.up = nn.ModuleList(
            nn.Sequential(*_block(nn.ConvTranspose3d(2 * width, width, 2, stride=2))) for width in widths[:-1]
        )
        self.after = nn.ModuleList(
            nn.Sequential(*_layers(count, width, width)) for count, width in zip(counts[:-1], widths[:-1], strict=True)
        )
        self.dropout, self.last = nn.Dropout3d(0.5), nn.Conv3d(filters, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        maps = [image]
        for down in self.down:
            maps.append(down(maps[-1]))
        result = self.dropout(maps.pop())
        for level in (3, 2, 1, 0):
            result = self.after[level](self.up[level](result) + maps.pop())
        scores: Tensor = self.last(self.dropout(result))
        return scores


def _block(layer: nn.Module) -> tuple[nn.Module, ...]:
    return layer, nn.BatchNorm3d(layer.out_channels), nn.ReLU(inplace=True)  # type: ignore[arg-type]


def _layers(count: int, first: int, width: int) -> list[nn.Module]:
    convolutions = (nn.Conv3d(width if number else first, width, 3, padding=1) for number in range(count))
    return [each for convolution in convolutions for each in _block(convolution)]


def read(row: Sequence[str]) -> Case:
    """Image, z-scored, and label, both (x, y, z)."""
    import nibabel

    image, label = (np.asarray(nibabel.load(path).dataobj) for path in row)  # type: ignore[attr-defined]
    image = image.astype(np.float32)
    return (image - image.mean()) / image.std(), label.astype(np.uint8)


class Patches(Dataset[tuple[Tensor, Tensor]]):
    """A random patch of each case: image (1, *S) and label (*S)."""

    def __init__(self, cases: Sequence[Case], patch: Sequence[int]) -> None:
        self.cases, self.patch = cases, patch

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        turns, axis = random.randrange(4), random.randrange(2)
        pair = [np.flip(np.rot90(array, turns), axis) for array in self.cases[number]]
        short = [max(0, size - side + 6) // 2 for size, side in zip(self.patch, pair[0].shape, strict=True)]
        pair = [np.pad(array, [(each, each) for each in short]) if any(short) else array for array in pair]
        starts = [random.randint(0, side - size) for side, size in zip(pair[0].shape, self.patch, strict=True)]
        box = tuple(slice(start, start + size) for start, size in zip(starts, self.patch, strict=True))
        image, label = (torch.from_numpy(array[box].copy()) for array in pair)
        return image[None], label.long()


def loss_of(scores: Tensor, label: Tensor) -> Tensor:
    chance, truth = scores.float().softmax(1)[:, 1], (label == 1).float()
    overlap = 2 * (chance * truth).sum() + 1e-5
    dice = overlap / (chance.square().sum() + truth.sum() + 1e-5)
    return 0.5 * (functional.cross_entropy(scores, label) + 1 - dice)


def train(given: argparse.Namespace) -> None:
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    device, seconds = torch.device(given.device), {"import": process_start_seconds(), "train": 0.0}
    rows = json.loads(given.cases.read_text())
    training, held = ([read(row) for row in rows[part]] for part in ("train", "validation"))
    seconds["cache"] = process_start_seconds() - seconds["import"]
    loader = DataLoader(
        Patches(training, given.patch),
        batch_size=BATCH,
        shuffle=True,
        num_workers=given.workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=lambda number: random.seed(given.seed + number),
    )
    network = VNet().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    curve, paces, done, stopped, losses = list[dict[str, Any]](), list[float](), 0, "", list[Tensor]()
    while not stopped:
        begun = process_start_seconds()
        for image, label in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = loss_of(network(image.to(device)), label.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
            done += 1
            if done % TENTH == 0:
                optimizer.param_groups[0]["lr"] *= 0.1
        mean = float(torch.stack(losses[-len(loader) :]).mean())  # waits for the steps
        paces.append((process_start_seconds() - begun) / len(loader))
        seconds["train"] += paces[-1] * len(loader)
        if process_start_seconds() > given.max_seconds:
            stopped = "max_seconds"
        elif done >= given.iterations:
            stopped = "max_epochs"
        if stopped or done % given.validate_every < len(loader):
            dice = validate(network, held, given.patch, device)
            curve.append({"seconds": process_start_seconds(), "step": done, "loss": mean, "dice": dice})
            stopped = "target" if dice >= given.target else stopped
            best = max(point["dice"] for point in curve)
            settings = {"metric": "dice", "target": given.target, "max_seconds": given.max_seconds}
            total = {"total": process_start_seconds()}
            write_json(given.out, {"curve": curve, "best": best, "seconds": seconds | total, "stopped": stopped or None,
                                   "steps": done, "step_s": paces[1:] or paces, "seconds_per_epoch": [],
                                   "settings": settings})  # fmt: skip


@torch.no_grad()
def validate(network: nn.Module, cases: Sequence[Case], patch: Sequence[int], device: torch.device) -> float:
    """Mean Dice of the cases."""
    from monai.inferers import sliding_window_inference

    network.eval()
    values = []
    for image, label in cases:
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            given = torch.from_numpy(image)[None, None].to(device)
            scores = sliding_window_inference(given, tuple(patch), BATCH, network, overlap=0.5)
        found, truth = scores[0].argmax(0).bool(), torch.from_numpy(label == 1).to(device)  # type: ignore[index]
        values.append(float(2 * (found & truth).sum() / (found.sum() + truth.sum()).clamp(min=1)))
    network.train()
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
