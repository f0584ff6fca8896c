"""The link between a job's workers, measured: `torchrun ... -m hasten.study.scale.predict.measure --out link.json`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import distributed

from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
from hasten.observe.rundir import write_json
from hasten.study.environment.rates import synchronize
from hasten.study.scale.predict.fit import alpha_beta
from hasten.study.scale.predict.links import Link

SIZES = tuple(2**power for power in range(10, 27))
"""1 KiB to 64 MiB."""
_MOST, _FEWEST = 15, 3
"""Repetitions of a size."""


def measure_all_reduce(
    device: torch.device, *, seconds: float = 30.0, sizes: Sequence[int] = SIZES
) -> list[tuple[float, float]]:
    """(bytes, median seconds of the slowest rank) of all-reduces over the default group. All ranks call it.

    seconds: approximate total time; on a slow link the largest sizes are left out.
    """
    points: list[tuple[float, float]] = []
    remaining = seconds
    for place, size in enumerate(sizes):
        values = torch.ones(size // 4, dtype=torch.float32, device=device)
        # Every rank decides by the same reduced time, or one would wait for the others forever.
        first = _timed(values)
        remaining -= first
        repeats = int(max(_FEWEST, min(_MOST, remaining / (len(sizes) - place) / max(first, 1e-9))))
        if place >= 3 and repeats * first > remaining:
            break
        timings = [_timed(values) for _ in range(repeats)]
        remaining -= sum(timings)
        points.append((4.0 * values.numel(), statistics.median(timings)))
    return points


def _timed(values: torch.Tensor) -> float:
    """Seconds of one all-reduce from when the last rank is ready, of the slowest rank."""
    values.fill_(1.0)
    distributed.barrier()
    synchronize(values.device)
    begin = time.perf_counter()
    distributed.all_reduce(values)
    synchronize(values.device)
    elapsed = torch.tensor([time.perf_counter() - begin], device=values.device)
    distributed.all_reduce(elapsed, distributed.ReduceOp.MAX)
    return float(elapsed)


def measure_link(device: torch.device, *, name: str, seconds: float = 30.0) -> Link:
    """The default group's link by the ring's formula. All ranks call it, and get the same."""
    points = measure_all_reduce(device, seconds=seconds)
    workers = distributed.get_world_size()
    largest, slowest = points[-1]
    note = f"measured over {workers} workers up to {largest / 2**20:g} MiB, which took {slowest:.3g} s"
    link = alpha_beta(points, workers, name=name, note=note)
    return replace(link, trees=distributed.get_backend() == "nccl")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for `hasten scale predict --link`")
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long it may take")
    args = parser.parse_args(argv)
    world = detect_world()
    if world.size < 2:
        parser.error("needs 2 processes or more: torchrun --nproc-per-node 2 -m hasten.study.scale.predict.measure ...")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", world.local_rank) if cuda else torch.device("cpu")
    with process_group(world, DistributeConfig(timeout_s=120), device):
        link = measure_link(device, name=args.out.stem, seconds=args.seconds)
    if world.first:
        write_json(args.out, asdict(link))
        print(f"{args.out}: {1e6 * link.latency_s:.3g} us a message, {link.bytes_per_s / 1e6:.4g} MB/s")


if __name__ == "__main__":
    main()
