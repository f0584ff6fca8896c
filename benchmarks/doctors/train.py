"""Two ordinary training programs on a Decathlon folder, plain PyTorch and MONAI, with one fault at a time put in.

They know nothing of Hasten. Without a fault the cases wait in memory and the step is most of the time. A CPU has no
queue of kernels to wait for, so the fault `sync` reads whole score maps into Python lists, which costs there too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import nibabel
import numpy as np
import torch
from monai.data import CacheDataset, Dataset, ThreadDataLoader
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, MapTransform, RandGaussianSmoothd, RandSpatialCropd, ScaleIntensityd
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

FAULTS = ("none", "slow-disk", "zero-workers", "sync", "validation", "tiny-batch", "heavy-transform")
PASSES = {"heavy-transform": 12, "zero-workers": 4}
"""Smoothings of an item."""
READ_DELAY = 0.08
"""Seconds that a file takes longer on the slow disk."""


def read(row: dict[str, str], fault: str) -> dict[str, torch.Tensor]:
    """(1, D, H, W) image and label, padded to at least 32 voxels a side."""
    if fault == "slow-disk":
        time.sleep(READ_DELAY)
    results = {}
    for key in ("image", "label"):
        array = np.asarray(nibabel.load(row[key]).dataobj, dtype=np.float32)
        array = np.pad(array, [(0, max(0, 32 - side)) for side in array.shape])
        results[key] = torch.from_numpy(array)[None]
    image = results["image"]
    results["image"] = (image - image.mean()) / image.std()
    return results


def smooth(image: torch.Tensor, passes: int = 12) -> torch.Tensor:
    """What a heavy transform costs: so many passes of a wide Gaussian."""
    from scipy.ndimage import gaussian_filter

    array = image.numpy()
    for _ in range(passes):
        array = gaussian_filter(array, 2.0)
    return torch.from_numpy(array)


class Cases(TorchDataset):
    """Random crops of cases that are kept in memory, or read again each time."""

    def __init__(self, rows: list[dict[str, str]], side: int, fault: str) -> None:
        self.rows, self.side, self.fault = rows, side, fault
        self.keep = fault not in ("slow-disk", "zero-workers")
        self.kept = [read(row, fault) for row in rows] if self.keep else []

    def __len__(self) -> int:
        return 4 * len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = index % len(self.rows)
        case = self.kept[number] if self.keep else read(self.rows[number], self.fault)
        first = [int(torch.randint(0, length - self.side + 1, ())) for length in case["image"].shape[1:]]
        box = (slice(None), *(slice(start, start + self.side) for start in first))
        image = case["image"][box]
        if self.fault in PASSES:
            image = smooth(image, PASSES[self.fault])
        return image, case["label"][box]


class Read(MapTransform):
    def __init__(self, fault: str) -> None:
        super().__init__(["image", "label"])
        self.fault = fault

    def __call__(self, data: dict) -> dict:
        return read(data, self.fault)


def monai_loader(rows: list[dict[str, str]], side: int, fault: str, batch_size: int) -> DataLoader:
    chain: list = [
        Read(fault),
        ScaleIntensityd("image"),
        RandSpatialCropd(["image", "label"], (side, side, side), random_size=False),
    ]
    width = ((3.0, 4.0),) * 3
    chain += [RandGaussianSmoothd("image", *width, prob=1.0) for _ in range(PASSES.get(fault, 0))]
    if fault in ("slow-disk", "zero-workers"):
        return DataLoader(Dataset(4 * rows, Compose(chain)), batch_size=batch_size, shuffle=True,
                          num_workers=0 if fault == "zero-workers" else 1)  # fmt: skip
    data = CacheDataset(4 * rows, Compose(chain), num_workers=2, progress=False)
    if fault == "heavy-transform":
        return DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=1)
    return ThreadDataLoader(data, batch_size=batch_size, shuffle=True, num_workers=0)


def plain_loader(rows: list[dict[str, str]], side: int, fault: str, batch_size: int) -> DataLoader:
    workers = 1 if fault in ("slow-disk", "heavy-transform") else 0
    return DataLoader(Cases(rows, side, fault), batch_size=batch_size, shuffle=True, num_workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--style", choices=("plain", "monai"), default="plain")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--times", type=Path, help="write the seconds of each step here")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    listing = json.loads((given.data / "dataset.json").read_text())["training"]
    rows = [{key: str(given.data / row[key]) for key in ("image", "label")} for row in listing[:24]]
    side, batch_size = (16, 1) if given.fault == "tiny-batch" else (32, 8)
    make = plain_loader if given.style == "plain" else monai_loader
    loader = make(rows[:20], side, given.fault, batch_size)
    held = [read(row, "none") for row in rows[20:]]

    net = UNet(3, 1, 3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2, norm="instance")
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    step, marks = 0, [time.perf_counter()]
    while step < given.steps:
        for batch in loader:
            image, label = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            scores = net(image)
            loss = loss_function(scores, label)
            loss.backward()
            optimizer.step()
            if given.fault == "sync":
                for _ in range(4):
                    scores.detach().tolist()
            step += 1
            marks.append(time.perf_counter())
            if given.fault == "validation" or step % 100 == 0:
                validate(net, held)
            if step == given.steps:
                break
    if given.times:
        given.times.write_text("".join(f"{after - before}\n" for before, after in itertools.pairwise(marks)))


def validate(net: torch.nn.Module, held: list[dict[str, torch.Tensor]]) -> None:
    net.eval()
    with torch.no_grad():
        for case in held:
            crop = case["image"][None, :, :32, :32, :32]
            net(crop).argmax(1)
    net.train()


if __name__ == "__main__":
    main()
