"""What all arms share: the cases, the split, the network, the deterministic transforms, Dice and the result file.

No arm may differ from another in any of these, so each has them from here.

Dice: 2 |P & L| / (|P| + |L|) per case and foreground class, on the label map after argmax and on the prepared (for CT:
resampled and cropped) voxels. A class that the case's label lacks is left out (nan), which is what MONAI's DiceMetric
does. The mean foreground Dice averages a case's classes first, then the cases.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import hardware, versions
from hasten.observe.env import usable_cores

if TYPE_CHECKING:
    import torch

THRESHOLDS = (0.80, 0.85, 0.87, 0.88)
PHASES = ("import", "cache", "train", "wait", "validate")
"""Parts of a run's seconds that do not overlap. `wait`: the loop stood still for its next batch."""
CT_WINDOW = (-57.0, 164.0)
"""HU; the spleen tutorial's."""
SPLEEN_SPACING = (2.0, 1.5, 1.5)
"""mm (D, H, W); the spleen tutorial's."""


def network(num_classes: int) -> torch.nn.Module:
    from monai.networks.nets import UNet

    return UNet(
        spatial_dims=3, in_channels=1, out_channels=num_classes, channels=(16, 32, 64, 128), strides=(2, 2, 2),
        num_res_units=2, norm="instance",
    )  # fmt: skip


def since_start() -> float:
    """Seconds since this process started, so that imports count. One clock for all arms; it needs no torch."""
    from hasten.observe.clock import process_start_seconds

    return process_start_seconds()


def arm_parser(description: str) -> argparse.ArgumentParser:
    """The flags that every arm takes; None where an arm has a default of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="Decathlon folder with a dataset.json")
    parser.add_argument("--out", type=Path, required=True, help="result file (JSON), written after every validation")
    parser.add_argument("--split", type=Path, help='JSON, {"train": [ids], "validation": [ids]}; default 80/20')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.88, help="stop at this mean foreground Dice")
    parser.add_argument("--max-seconds", type=float, default=500.0, help="stop then, counted from process start")
    parser.add_argument("--max-epochs", type=int, help="stop after this many epochs")
    parser.add_argument("--kind", choices=("mr", "ct"), default="mr")
    triple: dict[str, Any] = {"nargs": 3, "metavar": ("D", "H", "W")}
    parser.add_argument("--patch", type=int, **triple, help="crop; default 32 32 32 (mr), 96 96 96 (ct)")
    parser.add_argument("--roi", type=int, **triple, help="validation window; default: the patch")
    parser.add_argument("--spacing", type=float, **triple, help="mm; default: as it is (mr), 2 1.5 1.5 (ct)")
    parser.add_argument("--cases", type=int, default=2, help="cases in a batch")
    parser.add_argument("--samples", type=int, default=4, help="crops of each case in a batch")
    parser.add_argument("--validate-every", type=int, metavar="EPOCHS", help="default 1; Hasten's: its plan's")
    parser.add_argument("--lr", type=float, help="learning rate; default: the tutorial's for the arm")
    parser.add_argument("--amp", choices=("on", "off"), help="autocast, bf16 on a CPU; default: the arm's")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="torch threads")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="cache threads or loader processes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="keep the best validation's weights in this file")
    return parser


def arm_arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """A peer's flags, with the peers' defaults filled in."""
    given = arm_parser(description).parse_args(argv)
    given.validate_every = given.validate_every or 1
    given.patch = tuple(given.patch or ((32, 32, 32) if given.kind == "mr" else (96, 96, 96)))
    given.roi = tuple(given.roi or given.patch)
    given.spacing = tuple(given.spacing) if given.spacing else (None if given.kind == "mr" else SPLEEN_SPACING)
    return given


# Cases


def list_cases(data: Path) -> tuple[list[dict[str, str]], int]:
    """Rows {"id", "image", "label"} of a Decathlon folder, and the number of classes with background."""
    listing = json.loads((data / "dataset.json").read_text())
    labels = sorted(int(value) for value in listing["labels"])
    assert labels == list(range(len(labels))), "the peers' losses want label values 0, 1, 2, ..."
    rows = [
        {"id": Path(row["image"]).name.removesuffix(".gz").removesuffix(".nii"),
         "image": str(data / row["image"]), "label": str(data / row["label"])}
        for row in listing["training"]
    ]  # fmt: skip
    return rows, len(labels)


def read_split(rows: list[dict[str, str]], split: Path | None) -> dict[str, list[dict[str, str]]]:
    """The rows of each part; without a file 80 % train and 20 % validation by a draw with seed 0."""
    by_id = {row["id"]: row for row in rows}
    if split is None:
        ids = sorted(by_id)
        random.Random(0).shuffle(ids)
        held = max(1, round(0.2 * len(ids)))
        parts = {"train": sorted(ids[held:]), "validation": sorted(ids[:held])}
    else:
        parts = json.loads(split.read_text())
    for part in ("train", "validation"):
        unknown = sorted(set(parts.get(part, [])) - set(by_id))
        if unknown or not parts.get(part):
            wrong = f"names cases that the data lacks: {unknown[:3]}" if unknown else "is empty; list case ids"
            raise ValueError(f"{split}: `{part}` {wrong}")
    return {part: [by_id[id] for id in parts[part]] for part in ("train", "validation")}


# Transforms


def deterministic(
    kind: str, *, spacing: Sequence[float] | None = None, pad: Sequence[int] | None = None, indices: bool = False,
) -> list[Callable[..., Any]]:  # fmt: skip
    """MONAI's transforms up to the first random one, in the order of the fast training tutorial.

    `spacing` (mm) and `pad` (smallest shape, voxels) are (D, H, W); MONAI's arrays are (x, y, z), hence the reversals.
    `indices` adds the foreground and background voxels that RandCropByPosNegLabeld draws from.
    """
    from monai import transforms as mt

    keys = ["image", "label"]
    chain: list[Any] = [mt.LoadImaged(keys), mt.EnsureChannelFirstd(keys)]
    chain.append(mt.Orientationd(keys, axcodes="RAS", labels=None))
    if spacing is not None:
        chain.append(mt.Spacingd(keys, pixdim=tuple(spacing)[::-1], mode=("bilinear", "nearest")))
    if kind == "ct":
        low, high = CT_WINDOW
        chain.append(mt.ScaleIntensityRanged("image", a_min=low, a_max=high, b_min=0.0, b_max=1.0, clip=True))
        chain.append(mt.CropForegroundd(keys, source_key="image"))
    else:
        chain.append(mt.NormalizeIntensityd("image"))
    if pad is not None:
        chain.append(mt.SpatialPadd(keys, spatial_size=tuple(pad)[::-1]))
    if indices:
        # The tutorial takes background from voxels above 0 after windowing; z-scored MR has no such threshold.
        inside = {"image_key": "image"} if kind == "ct" else {}
        chain.append(mt.FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", **inside))
    return chain


def random_crop(patch: Sequence[int], num_samples: int) -> Any:
    from monai.transforms import RandCropByPosNegLabeld

    return RandCropByPosNegLabeld(
        ["image", "label"], label_key="label", spatial_size=tuple(patch)[::-1], pos=1, neg=1, num_samples=num_samples,
        fg_indices_key="label_fg", bg_indices_key="label_bg",
    )  # fmt: skip


# Dice


def case_dice(prediction: torch.Tensor, label: torch.Tensor, num_classes: int) -> list[float]:
    """Dice of each foreground class of one case, from two label maps of any one shape; nan where the label lacks it."""
    scores = []
    for value in range(1, num_classes):
        p, l = prediction == value, label == value  # noqa: E741
        size = int(l.sum())
        scores.append(2 * int((p & l).sum()) / (int(p.sum()) + size) if size else math.nan)
    return scores


def mean_dice(scores: Sequence[Sequence[float]]) -> tuple[float, list[float]]:
    """Mean foreground Dice and the mean per class, of `case_dice` rows."""
    per_case = [_mean(row) for row in scores]
    return _mean(per_case), [_mean(column) for column in zip(*scores, strict=True)]


def _mean(values: Sequence[float]) -> float:
    present = [value for value in values if not math.isnan(value)]
    return sum(present) / len(present) if present else math.nan


# Results


@dataclass
class Record:
    """What one run of an arm found; `write` may be called at any time."""

    arm: str
    given: argparse.Namespace
    notes: str
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    curve: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Seconds of each whole epoch, without its validation."""
    steps: int = 0
    stopped: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    engaged: dict[str, Any] = field(default_factory=dict)
    """Accelerators that were on, and why, where the arm decides that for itself."""

    def validated(self, epoch: int, scores: Sequence[Sequence[float]], **figures: float) -> float:
        """Add a point to the curve, write the file and print a line; `figures` are kept and printed with the point."""
        mean, per_class = mean_dice(scores)
        now = round(since_start(), 3)
        classes = [_number(value) for value in per_class]
        point = {"seconds": now, "step": self.steps, "epoch": epoch, "dice": _number(mean), "per_class": classes}
        self.curve.append({**point, **{name: _number(value) for name, value in figures.items()}})
        self.write()
        said = "".join(f"  {name} {value:.4g}" for name, value in figures.items())
        print(f"{self.arm} {now:7.1f} s  step {self.steps:5d}  Dice {mean:.4f}{said}", file=sys.stderr, flush=True)
        return mean

    def time_to(self) -> dict[str, float | None]:
        """Seconds from process start to the first validation at or above each threshold."""
        wanted = sorted({*THRESHOLDS, self.given.target})
        return {
            f"{level:.2f}" if round(level, 2) == level else f"{level:g}": next(
                (point["seconds"] for point in self.curve if point["dice"] is not None and point["dice"] >= level), None
            )
            for level in wanted
        }

    def write(self) -> None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(self.given).items()}
        seconds = {**self.seconds, "total": since_start()}
        result = {
            "arm": self.arm,
            "seed": self.given.seed,
            "notes": self.notes,
            "settings": settings,
            "cases": self.sizes,
            "curve": self.curve,
            "best": max((point["dice"] for point in self.curve if point["dice"] is not None), default=None),
            "time_to": self.time_to(),
            "seconds": {key: round(value, 3) for key, value in seconds.items()},
            "steps": self.steps,
            "seconds_per_epoch": self.epochs,
            "stopped": self.stopped,
            "engaged": self.engaged,
            "hardware": hardware(),
            "versions": versions(),
        }
        self.given.out.parent.mkdir(parents=True, exist_ok=True)
        part = self.given.out.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(self.given.out)  # a reader, or a run that is cut off, never meets half a file


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
