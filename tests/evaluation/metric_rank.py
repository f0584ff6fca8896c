"""One process of a group: its share of the cases through every metric, for several ways to share them out.

`python -m tests.evaluation.metric_rank RANK WORLD FILE` prints the results as JSON, numbers by their bits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.evaluation.overlap import DiceMetric, MeanIoU
from hasten.evaluation.rocauc import ROCAUCMetric, VoxelROCAUC

CASES = 7
SHARES: list[list[list[int]]] = [
    [[0, 1, 2, 3, 4, 5, 6], []],
    [[], [0, 1, 2, 3, 4, 5, 6]],
    [[6, 2], [5, 0, 1, 4, 3]],
    [[0, 2, 4, 6], [1, 3, 5]],
]
"""Of each way: the cases of each rank."""


def case(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (1, 3, ...) and two maps of class index (1, 1, ...), of another size for each case."""
    generator = torch.Generator().manual_seed(number)
    score = torch.randn(1, 3, 4 + number, 5, generator=generator).softmax(1)
    label = torch.randint(0, 3 - number % 2, (1, 1, 4 + number, 5), generator=generator)
    return score, score.argmax(1, keepdim=True), label


def results(numbers: list[int]) -> dict[str, Any]:
    dice = DiceMetric(include_background=False, num_classes=3)
    each = DiceMetric(reduction="mean_batch", num_classes=3)
    iou = MeanIoU(num_classes=3)
    auc, voxels = ROCAUCMetric("none"), VoxelROCAUC("macro", bins=64)
    for number in numbers:
        score, predicted, label = case(number)
        for metric in (dice, each, iou):
            metric(predicted, label)
        voxels(score, label)
        auc(score.mean((2, 3)), torch.tensor([[number % 2, number < 3, number > 1]]))
    entries = {"dice": dice, "each": each, "iou": iou, "auc": auc, "voxels": voxels}
    # Each twice: what was gathered is not gathered or counted again.
    return {name: [bits(metric.compute()), bits(metric.compute())] for name, metric in entries.items()} | {
        "cases": len(dice.get_buffer())
    }


def bits(result: float | list[float]) -> list[str]:
    return [value.hex() for value in (result if isinstance(result, list) else [result])]


def told_where_there_is_none() -> str:
    try:
        DiceMetric().aggregate()
    except ValueError as error:
        return str(error)
    return ""


def told_where_the_classes_differ(rank: int) -> str:
    metric = MeanIoU()
    side = torch.ones(1, 2 + rank, 4)
    metric(side, side)
    try:
        metric.aggregate()
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
    entries = [results(shares[rank]) for shares in SHARES]
    print(json.dumps([entries, told_where_there_is_none(), told_where_the_classes_differ(rank)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
