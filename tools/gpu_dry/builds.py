"""The Triton kernels that a run builds before its first step: how many, and how long that takes on this machine.

Counted for a batch and a network on the fake device. Exits with 1 if there are more than in `budget.json`. With
--time, they are compiled for sm_90, one by one and together, five times each in turns; the seconds go into a file.

    python -m tools.gpu_dry.builds [--time FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.harness import finish, interleave
from hasten.config.schema import LossConfig, NetworkConfig
from hasten.nets.build import build_loss, build_network
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.nets.surgery.operate import operate
from hasten.runtime.precision import autocast
from tools.gpu_dry.augmentation import preset_segment
from tools.gpu_dry.compile_kernels import Launch, recorded
from tools.gpu_dry.fake_device import CUDA, fake_cuda, keep_format, moved, on_cuda, triton_works

LAST = torch.channels_last_3d
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """A recipe's network, loss and augmentation."""

    network: dict[str, Any]
    patch: tuple[int, int, int]
    classes: int
    chain: str


HALVED = ((2, 2, 2),)
RUNS = {
    "spleen": Run(
        {"name": "unet", "channels": (32, 64, 128, 256, 512), "strides": HALVED * 4, "norm": "batch", "dropout": 0.2},
        (96, 96, 96), 2, "spleen",
    ),
    "hippocampus": Run(
        {"name": "unet", "channels": (32, 64, 128, 256), "strides": HALVED * 3}, (40, 56, 40), 3, "default"
    ),
    "nnU-Net": Run(
        {"name": "plainconvunet", "channels": (32, 64, 128, 256, 320, 320), "strides": HALVED * 5},
        (128, 128, 128), 3, "nnunet",
    ),
}  # fmt: skip
BATCH = 2


def launches_of_network(run: Run) -> list[Launch]:
    """Of the forward and the backward pass, in channels-last bf16."""
    host = build_network(NetworkConfig(**run.network), num_channels=1, num_classes=run.classes, spatial_dims=3)
    operate(host, torch.zeros(2, 1, 64, 64, 64))
    fused_norms(host.to(memory_format=LAST), True)  # type: ignore[call-overload]
    loss = build_loss(LossConfig())
    with fake_cuda(), triton_works(), recorded() as launches:
        network = moved(host)
        keep_format(network, LAST)
        image = torch.empty(BATCH, 1, *run.patch, device=CUDA).contiguous(memory_format=LAST)
        with autocast(CUDA, "bf16"), gpu_forms():
            scores = network(image)
        loss(scores, torch.empty(BATCH, 1, *run.patch, dtype=torch.uint8, device=CUDA)).backward()
    return list(dict.fromkeys(launches))


def launches_of_batch(run: Run) -> list[Launch]:
    """Of drawing and rendering a batch."""
    host = preset_segment(run.chain, 3, 32, "float16", batch_size=BATCH)
    with fake_cuda(), triton_works(), recorded() as launches:
        list(on_cuda(host).batches(0, 1))
    return list(dict.fromkeys(launches))


def seconds(launches: list[Launch], threads: int) -> float:
    """Of compiling, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(threads) as pool:
        triton.knobs.cache.dir = cache
        begin = time.perf_counter()
        list(pool.map(lambda launch: launch.built(90), launches))
        return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=Path, metavar="FOLDER", help="also compile them, and keep the seconds there")
    args = parser.parse_args()
    budget = json.loads(Path(__file__).with_name("budget.json").read_text())["builds"]
    over = 0
    every = {}
    for name, run in RUNS.items():
        parts = {"network": launches_of_network(run), "batch": launches_of_batch(run)}
        every[name] = [launch for part in parts.values() for launch in part]
        for part, launches in parts.items():
            kinds = ", ".join(f"{count} {kernel}" for kernel, count in Counter(map(_kernel, launches)).items())
            allowed = budget[name][part]
            over += len(launches) > allowed
            print(f"{name}, {part}: {len(launches)} kernels to build (at most {allowed}): {kinds}")
    if args.time is not None:
        threads = len(os.sched_getaffinity(0))
        arms = {
            f"{name}, {how}_s": partial(seconds, launches, count)
            for name, launches in every.items() for how, count in (("one by one", 1), ("together", threads))
        }  # fmt: skip
        finish("kernel_builds", [], interleave(arms, ROUNDS), args.time, False, settings={"about": __doc__})
    return 1 if over else 0


def _kernel(launch: Launch) -> str:
    return str(launch.kernel.__name__).removesuffix("_kernel")


if __name__ == "__main__":
    sys.exit(main())
