"""How evenly cases are dealt among workers: cut by count in the order of the list, and balanced by cost.

Balanced means the mean load over the largest: the share of the time in which a worker has something to do while the one
with the most finishes. On the sizes of the hippocampus volumes, in voxels, and on a skewed set: log-normal sizes (sigma
1), as of scans of several protocols. `partition` is for whole-volume work such as validation; `deal` is for the parts
of the training cases, whose numbers of cases are equal too, in the first round and after exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = (2, 4, 8)
SKEWED_CASES, SIGMA, SEEDS = 260, 1.0, 20
ROUNDS = 5


def measure(data: Path | None) -> dict[str, Any]:
    """Of each set and number of workers, what share is balanced before and after. data: of the hippocampus, if there.

    Of the skewed set the worst of several seeds.
    """
    results: dict[str, Any] = {"balanced": "mean load over largest load", "sets": {}}
    if data is None:
        print("no hippocampus data: give its folder with --data; its imbalance is left out", flush=True)
    else:
        results["sets"]["hippocampus"] = {str(count): compared(sizes_of(data), count) for count in WORKERS}
    drawn = [
        np.exp(SIGMA * np.random.default_rng(seed).standard_normal(SKEWED_CASES)).tolist() for seed in range(SEEDS)
    ]
    results["sets"]["skewed"] = {
        str(count): _worst([compared(costs, count) for costs in drawn]) for count in WORKERS
    }  # fmt: skip
    return results


def compared(costs: Sequence[float], workers: int) -> dict[str, float]:
    """What share is balanced, by each way of dealing."""
    from hasten.distribute.balance import imbalance, in_order, loads_of, partition
    from hasten.distribute.case_assignment import CaseAssignment

    deal = CaseAssignment(
        costs={f"{number:06d}": cost for number, cost in enumerate(costs)}, parts=workers, seed=0, every=1
    )
    ways = {
        "in order": [in_order(len(costs), workers)],
        "partition": [partition(costs, workers)],
        "deal": [deal.positions(0)],
        "deal, after exchanges": [deal.positions(number) for number in range(1, ROUNDS + 1)],
    }
    return {name: min(1 / imbalance(loads_of(costs, parts)) for parts in result) for name, result in ways.items()}


def _worst(result: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: min(each[name] for each in result) for name in result[0]}


def sizes_of(data: Path) -> list[float]:
    """Voxels of each case of a source."""
    from hasten.cases.sources import load_case_set
    from hasten.prepare.fingerprint import take_fingerprint

    return [float(prod(shape)) for shape in take_fingerprint(load_case_set(data)).shapes]
