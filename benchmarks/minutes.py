"""MONAI's published recipes for a given time, on 3-D data sets: the peers of `benchmarks.any_data`.

`fast`: Project-MONAI/tutorials, acceleration/fast_training_tutorial.ipynb: cached cases, RandCropByPosNegLabel, UNet
with two residual units and batch norm, DiceCE, SGD at 0.2 with momentum 0.9. `segresnet`: Auto3DSeg's SegResNet
recipe: instance norm, deep supervision left out, DiceCE, AdamW at 2e-4 with warm-up and cosine, flips, shifts and
scalings of intensity. Both train until what is left of the time is a validation, whose seconds are measured on one case
before; the schedule of `segresnet` follows the clock. Prints one line of JSON: the Dice on the files' own voxels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.observe.clock import process_start_seconds


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with imagesTr and labelsTr")
    parser.add_argument("--recipe", choices=("fast", "segresnet"), required=True)
    parser.add_argument("--seconds", type=float, required=True, help="from the start of the process")
    parser.add_argument("--validation", nargs="+", required=True, help="ids of the held-out cases")
    parser.add_argument("--spacing", nargs=3, type=float, required=True, help="D H W in mm; 0 keeps the files'")
    parser.add_argument("--patch", nargs=3, type=int, required=True, help="D H W")
    parser.add_argument("--crops", type=int, default=4, help="of a case, all in one step")
    parser.add_argument("--width", type=int, default=16, help="channels of the finest level")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    print(json.dumps(trained(given)), flush=True)


def trained(given: argparse.Namespace) -> dict[str, float]:
    import monai.transforms as mt
    import torch
    from monai.data import CacheDataset
    from monai.losses import DiceCELoss
    from monai.networks.nets import SegResNet, UNet
    from monai.utils import set_determinism

    begin = time.perf_counter() - process_start_seconds()
    set_determinism(given.seed)
    labels = json.loads((given.data / "dataset.json").read_text())["labels"]
    cases = sorted(path.name for path in (given.data / "imagesTr").glob("*.nii.gz"))
    files = [
        {"image": str(given.data / "imagesTr" / name), "label": str(given.data / "labelsTr" / name)} for name in cases
    ]
    held_out = [case for case, name in zip(files, cases, strict=True) if name.split(".")[0] in given.validation]
    train = [case for case in files if case not in held_out]
    keys, patch = ["image", "label"], given.patch[::-1]
    flat = given.spacing[0] >= 3 * given.spacing[2] > 0
    spacing = [mt.Spacingd(keys, given.spacing[::-1], mode=("bilinear", "nearest"))] if any(given.spacing) else []
    read = [
        mt.LoadImaged(keys, ensure_channel_first=True, image_only=True),
        mt.Orientationd(keys, axcodes="RAS", labels=None),
        *spacing,
        mt.NormalizeIntensityd("image", nonzero=True, channel_wise=True),
    ]
    crop = mt.RandCropByPosNegLabeld(keys, "label", patch, num_samples=given.crops)
    extra: list[Any] = []
    if given.recipe == "segresnet":
        extra = [
            *(mt.RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)),
            mt.RandScaleIntensityd("image", factors=0.3, prob=0.5),
            mt.RandShiftIntensityd("image", offsets=0.1, prob=0.5),
        ]
    dataset = CacheDataset(
        train, mt.Compose([*read, mt.SpatialPadd(keys, patch), crop, *extra]), num_workers=2, progress=False
    )
    width, outputs = given.width, len(labels)
    network: torch.nn.Module
    if given.recipe == "fast":
        step = (2, 2, 1) if flat else 2  # thick slices are halved once, as in a plan
        network = UNet(3, 1, outputs, [width * 2**level for level in range(4)], [step, step, 2], num_res_units=2,
                       norm="batch")  # fmt: skip
        optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), 0.2, momentum=0.9, weight_decay=4e-5)
    else:
        network = SegResNet(3, width // 2, in_channels=1, out_channels=outputs, norm="INSTANCE",
                            blocks_down=(1, 2, 2, 4), blocks_up=(1, 1, 1))  # fmt: skip
        optimizer = torch.optim.AdamW(network.parameters(), 2e-4, weight_decay=1e-5)
    loss = DiceCELoss(to_onehot_y=True, softmax=True, include_background=False, squared_pred=True, batch=True)

    def spent() -> float:
        return time.perf_counter() - begin

    evaluate = Evaluation(network, mt.Compose(read), held_out, outputs, patch)
    case_s = evaluate.seconds()
    end, first, steps = given.seconds - 1.1 * case_s * len(held_out), spent(), 0
    for number in itertools.cycle(torch.randperm(len(train)).tolist()):
        if spent() >= end:
            break
        if given.recipe == "segresnet":
            share = (spent() - first) / (end - first)
            rate = min(1.0, share / 0.03) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
            for group in optimizer.param_groups:
                group["lr"] = 2e-4 * rate
        crops: Any = dataset[number]
        image, label = (torch.stack([crop[key].as_tensor() for crop in crops]) for key in keys)
        optimizer.zero_grad()
        loss(network(image), label).backward()
        optimizer.step()
        steps += 1
    return {"dice": evaluate(), "steps": float(steps), "step_s": (end - first) / max(1, steps), "seconds": spent()}


class Evaluation:
    """Mean Dice of the held-out cases on the files' own voxels, turned to RAS."""

    def __init__(self, network: Any, read: Any, cases: Sequence[Any], outputs: int, patch: Sequence[int]) -> None:
        self.network, self.read, self.cases, self.outputs, self.patch = network, read, cases, outputs, patch

    def seconds(self) -> float:
        begin = time.perf_counter()
        self._dice(self.cases[0])
        return time.perf_counter() - begin

    def __call__(self) -> float:
        import numpy as np

        return float(np.nanmean([np.nanmean(self._dice(case)) for case in self.cases]))

    def _dice(self, case: dict[str, str]) -> list[float]:
        import monai.transforms as mt
        import torch
        from monai.inferers import sliding_window_inference

        whole = mt.Compose([
            mt.LoadImaged("label", ensure_channel_first=True, image_only=True),
            mt.Orientationd("label", axcodes="RAS", labels=None),
        ])  # fmt: skip
        label, image = whole(case)["label"].as_tensor()[0], self.read(case)["image"].as_tensor()
        self.network.eval()
        with torch.inference_mode():
            scores = sliding_window_inference(image[None], self.patch, 4, self.network, 0.5, "gaussian")
            assert isinstance(scores, torch.Tensor)
            found = torch.nn.functional.interpolate(scores, tuple(label.shape), mode="trilinear")[0].argmax(0)
        self.network.train()
        pairs = [(found == each, label == each) for each in range(1, self.outputs)]
        return [float(2 * (a & b).sum() / (a.sum() + b.sum())) if bool(b.any()) else math.nan for a, b in pairs]


if __name__ == "__main__":
    main()
