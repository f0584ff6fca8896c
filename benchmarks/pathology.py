"""Slides: tiles a second by library, and seconds of an epoch of MONAI's pipeline for tiles against Hasten's.

reading: random tiles of 224 pixels from a phantom slide (JPEG), two threads, a process for each library.
epoch: the same tiles, network (ResNet-18, narrow), optimizer and float32 in both arms. MONAI's reads every tile from
its slide (PatchWSIDataset), runs its tutorial's transforms on each and collates in two workers that stay; Hasten's has
read them once (`fill_s` says how long that took) and augments a batch at a time. torchvision's ColorJitter is stood in
for where it can't be imported (benchmarks/augments/colour_arm.py), by one that takes a quarter of its time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim, Part, arguments, interleave, median_ratio, part_arguments, run_parts

_READ = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from hasten.cases.slide import open_slide
path, backend, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
corners = np.random.default_rng(0).integers(0, 2048 - 224, (count, 2)).tolist()
with open_slide(path, backend) as slide, ThreadPoolExecutor(2) as pool:
    read = lambda at: slide.read_region(0, at[0], at[1], 224, 224).sum()
    list(pool.map(read, corners[:20]))
    begin = time.perf_counter()
    list(pool.map(read, corners))
    print(count / (time.perf_counter() - begin))
"""
"""In a process of its own: cuCIM can't share one with some libraries."""
_EPOCH = ("tiles.size=96", "tiles.stride=48", "tiles.tissue_downsample=8", "network.width=8", "train.batch_size=32",
          "train.precision=fp32", "train.channels_last=false", "train.ema=0", "train.clip_norm=0",
          "train.device=cpu")  # fmt: skip


def reading(given: argparse.Namespace) -> Part:
    from hasten.cases.slide.open import installed
    from hasten.phantoms.slides import make_phantom_slide, write_pyramid

    count, rounds = (100, 2) if given.quick else (1000, 7)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slide.tif"
        write_pyramid(path, make_phantom_slide(0)[0], 4, 0.5, "jpeg")

        def arm(backend: str) -> Callable[[], float]:
            command = [sys.executable, "-c", _READ, str(path), backend, str(count)]
            return lambda: float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        figures = interleave({name: arm(name) for name in installed()}, rounds, warmup=1)
    ratio = median_ratio(figures.get("cucim"), figures.get("openslide"))
    claims = [Claim.at_least("cuCIM reads this many times the tiles of OpenSlide", ratio, 1.0)]
    return claims, {f"{name}_tiles_per_s": values for name, values in figures.items()}, {"tiles": count}


def epoch(given: argparse.Namespace) -> Part:
    from hasten.cases.slide.listing import find_slides
    from hasten.pathology.config import load
    from hasten.pathology.tiles import pick_tiles, read_tiles
    from hasten.phantoms.slides import write_phantom_slides

    slides, size, rounds = (2, 512, 1) if given.quick else (8, 1024, 5)
    with tempfile.TemporaryDirectory() as folder:
        out = write_phantom_slides(Path(folder), num_cases=slides, shape=(1, size, size))
        config = load(None, [f"data.source={out}", *_EPOCH])
        begin = time.perf_counter()
        picked = pick_tiles(find_slides(out), config)
        tiles = read_tiles(picked, config)
        fill = time.perf_counter() - begin
        arms = {"monai": _monai(picked, config), "hasten": _hasten(tiles, config)}
        figures = interleave(arms, rounds, warmup=1)
    claims = [
        Claim.at_least("an epoch of MONAI's pipeline takes this many of Hasten's",
                       median_ratio(figures["monai"], figures["hasten"]), 1.0)
    ]  # fmt: skip
    series = {f"{name}_epoch_s": values for name, values in figures.items()}
    return claims, {**series, "hasten_fill_s": [fill]}, {"tiles": len(tiles.label), "settings": _EPOCH}


def _hasten(tiles: Any, config: Any) -> Callable[[], None]:
    """One epoch over the tiles, as `hasten train` makes it."""
    from hasten.pathology.compose import compose_slides

    parts = compose_slides(config, tiles)
    steps = len(tiles.label) // config.train.batch_size

    def run() -> None:
        for index, batch in enumerate(parts.program.batches(0, steps)):
            loss = parts.step(batch["image"], batch["label"], index)
        float(loss)

    return run


def _monai(picked: Any, config: Any) -> Callable[[], None]:
    """One epoch as MONAI's tutorial writes it, in float32."""
    import torch
    from monai.data import DataLoader, PatchWSIDataset
    from monai.transforms import Compose, ScaleIntensityRanged

    from benchmarks.augments.colour_arm import chain, has_torchvision
    from benchmarks.augments.patches import Tiles
    from hasten.pathology.compose import build_classifier, tile_loss

    rows = [
        {"image": str(each.case.slide), "location": list(each.grid.corner(int(number))), "label": int(label)}
        for each in picked
        for number, label in zip(each.numbers, each.labels, strict=True)
    ]
    scale = ScaleIntensityRanged("image", a_min=0, a_max=255, b_min=0, b_max=1)
    centre = ScaleIntensityRanged("image", a_min=0, a_max=1, b_min=-1, b_max=1)
    steps = chain(Tiles(side=config.tiles.size), "torchvision" if has_torchvision() else "stand_in")
    side = config.tiles.size
    inside = [_inside(row, side) for row in rows]
    dataset = PatchWSIDataset(
        data=inside, patch_size=side, patch_level=0, center_location=False, include_label=True,
        transform=Compose([scale, *steps, centre]), reader="OpenSlide",
    )  # fmt: skip
    loader = DataLoader(
        dataset, batch_size=config.train.batch_size, shuffle=True, num_workers=2, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip
    torch.manual_seed(0)
    network = build_classifier(config.network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.train.learning_rate)

    def run() -> None:
        for batch in loader:
            optimizer.zero_grad()
            loss = tile_loss(network(batch["image"].as_tensor()), batch["label"].reshape(-1, 1))
            loss.backward()
            optimizer.step()
            float(loss.detach())

    return run


def _inside(row: dict[str, Any], side: int) -> dict[str, Any]:
    """MONAI refuses tiles that reach beyond the slide, which Hasten fills with white: moved to where they fit."""
    from hasten.cases.slide import open_slide

    with open_slide(row["image"], "openslide") as slide:
        whole = slide.levels[0]
    top, left = row["location"]
    return {**row, "location": [min(max(top, 0), whole.height - side), min(max(left, 0), whole.width - side)]}


PARTS = {"reading": reading, "epoch": epoch}


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(str(__doc__).splitlines()[0], argv, parts=part_arguments(PARTS))
    run_parts("pathology", PARTS, given, __doc__)


if __name__ == "__main__":
    main()
