"""Measures which number and kind of loader workers is fastest for a data set."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hasten.feed.loader import ThreadDataLoader
from hasten.observe.compare import compare
from hasten.observe.cores import usable_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRow:
    """One loader setting and its measurements."""

    num_workers: int
    thread: bool
    """`ThreadDataLoader` rather than `DataLoader`."""
    pin_memory: bool
    batches_per_s: float
    """Median of the rounds, without the start of the workers."""
    start_s: float
    """Seconds from asking for the iterator to the first batch: what every epoch pays again."""


@dataclass(frozen=True, slots=True)
class LoaderTable:
    """All measured loader settings, the fastest first."""

    rows: tuple[LoaderRow, ...]
    batches_per_epoch: int
    best: LoaderRow
    """The setting with the shortest epoch, its start included, among those significantly faster than no workers and no
    thread; else that one."""

    def epoch_seconds(self, row: LoaderRow) -> float:
        return row.start_s + max(0, self.batches_per_epoch - 1) / row.batches_per_s

    def __str__(self) -> str:
        lines = ["workers  thread  pinned  batches/s  start s  epoch s"]
        lines += [
            f"{row.num_workers:7}  {'yes' if row.thread else 'no':>6}  {'yes' if row.pin_memory else 'no':>6}  "
            f"{row.batches_per_s:9.1f}  {row.start_s:7.2f}  {self.epoch_seconds(row):7.2f}"
            for row in self.rows
        ]
        return "\n".join(lines)


def tune_loader(
    dataset: Dataset[Any],
    batch_size: int = 1,
    *,
    workers: Sequence[int] | None = None,
    num_batches: int = 16,
    rounds: int = 5,
    **settings: Any,
) -> LoaderTable:
    """Measure loading with different numbers of workers, with threads against processes and pinned memory.

    Takes about rounds * num_batches * (time of a batch) * (number of ways). Pinned memory is tried where there is a
    GPU.

    Args:
        dataset: what the loader draws from.
        batch_size: items of a batch.
        workers: counts to try; None tries 0 and powers of two up to the usable cores.
        num_batches: of each round.
        rounds: least number of interleaved runs of each way; fewer than 5 decide nothing.
        settings: further arguments of `DataLoader`.

    Example:
        >>> cases = hasten.CacheDataset([1.0, 2.0, 3.0, 4.0], None)
        >>> table = hasten.tune_loader(cases, batch_size=2, workers=[0, 1], num_batches=2)
    """
    counts = sorted(set(workers if workers is not None else _counts(usable_cores())))
    pins = [False, True] if torch.cuda.is_available() else [False]
    ways = [(count, thread, pin) for count in counts for thread in (True, False) for pin in pins]
    ways = [way for way in ways if way[0] == 0 or not way[1]]  # a thread in front of processes adds nothing to them
    base = ways[0] if (0, False, False) not in ways else (0, False, False)
    times: dict[tuple[int, bool, bool], list[tuple[float, float]]] = {way: [] for way in ways}
    batches = -(-len(dataset) // batch_size)  # type: ignore[arg-type]

    def epoch(way: tuple[int, bool, bool]) -> float:
        count, thread, pin = way
        options = {**settings, "num_workers": count, "pin_memory": pin, "batch_size": batch_size, "shuffle": False}
        times[way].append(_timed((ThreadDataLoader if thread else DataLoader)(dataset, **options), num_batches))
        start, rate = times[way][-1]
        return start + max(0, batches - 1) / rate

    arms = {str(way): partial(epoch, way) for way in ways}
    comparison = compare(arms, base=str(base), rounds=(rounds, 2 * rounds), seconds=math.inf, warmup=0)
    rows = {
        way: LoaderRow(
            num_workers=way[0], thread=way[1], pin_memory=way[2],
            start_s=median(start for start, _ in times[way]), batches_per_s=median(rate for _, rate in times[way]),
        )
        for way in ways
    }  # fmt: skip
    faster = [way for way in ways if way != base and comparison.arms[str(way)].verdict == "faster"]
    best = max(faster, key=lambda way: comparison.arms[str(way)].gain, default=base)
    table = LoaderTable((), batches, rows[best])
    return replace(table, rows=tuple(sorted(rows.values(), key=table.epoch_seconds)))


def _counts(cores: int) -> list[int]:
    return [0, *itertools.takewhile(lambda count: count <= cores, (2**power for power in range(10)))]


def _timed(loader: DataLoader[Any], num_batches: int) -> tuple[float, float]:
    """Seconds to the first batch, and batches a second from there on."""
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter()
    count = sum(1 for _ in itertools.islice(batches, num_batches - 1))
    rate = count / max(1e-9, time.perf_counter() - first) if count else 1 / max(1e-9, first - begin)
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    return first - begin, rate
