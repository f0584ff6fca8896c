"""Chains of MONAI's tutorials as whole batches: what they hold, and that labels lie where MONAI puts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose, RandFlipd
from torch import Tensor

from hasten.augment.from_monai import compile_transforms
from tests.augment.tutorials import CHAINS, Rows

SAMPLE_BY_SAMPLE = ("self-supervised", "cells", "mednist")
"""Chains that are not lowered whole."""


def samples_of(chain: list[Any], rows: Rows, rounds: int) -> list[dict[str, Any]]:
    compose = Compose(chain)
    compose.set_random_state(1)
    results: list[dict[str, Any]] = []
    for row in rows * rounds:
        sample = compose({key: value.copy() if isinstance(value, np.ndarray) else value for key, value in row.items()})
        results += sample if isinstance(sample, list) else [sample]
    return results


def agreement(image: Any, label: Any) -> float | None:
    """How well the image's brightness tells the foreground of its label."""
    image, label = torch.as_tensor(image).float()[0].flatten(), torch.as_tensor(label).float()[0].flatten() > 0
    if image.shape != label.shape or not 0 < label.float().mean() < 1:
        return None
    return float(torch.corrcoef(torch.stack([image, label.float()]))[0, 1])


def mean(values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_what_monai_gives(name: str) -> None:
    make, chain = CHAINS[name]
    theirs = samples_of(chain, make(), 3)
    lowered = compile_transforms(Compose(chain))
    assert any(step.how == "per-sample" for step in lowered.plan.steps) == (name in SAMPLE_BY_SAMPLE)
    batches = list(lowered.bind(make(), batch_size=4, seed=0).batches(0, 4))
    for key, value in theirs[0].items():
        if isinstance(value, Tensor | np.ndarray | int | float) and key in batches[0]:
            assert batches[0][key].shape == (4, *np.shape(value)), key
    assert {"image", "label"} <= batches[0].keys()
    ours = mean(
        [
            agreement(*pair)
            for each in batches
            for pair in zip(each["image"], each["label"], strict=True)
            if torch.as_tensor(pair[1]).ndim == torch.as_tensor(pair[0]).ndim
        ]
    )
    wanted = mean([agreement(each["image"], each["label"]) for each in theirs if np.ndim(each["label"]) > 2])
    if wanted is not None and name != "weight":
        assert ours is not None
        assert ours > wanted - 0.1


def test_patches_of_a_row_are_items() -> None:
    make, chain = CHAINS["camelyon grid"]
    program = compile_transforms(Compose(chain)).bind(make(), batch_size=12, seed=1)
    assert sorted(program(0)["label"].flatten().tolist()) == sorted([0.0, 1.0, 2.0, 3.0] * 3)
    uneven = compile_transforms([lambda_of(lambda row: [row] * (1 + row["label"])), RandFlipd("image")])
    with pytest.raises(ValueError, match="item 1: gives 2 patches where item 0 gives 1"):
        uneven.bind([{"image": np.zeros((1, 4, 4)), "label": label} for label in (0, 1)], batch_size=1)


def lambda_of(function: Any) -> Any:
    function.deterministic = True
    return function


def test_entries_of_another_size_that_nothing_random_reads_come_along() -> None:
    """An error they stay where a crop would have to cut both."""
    rows = [{"image": np.zeros((1, 8, 8), np.float32), "label": np.full((1, 3, 3), number)} for number in range(3)]
    program = compile_transforms([RandFlipd("image", prob=0.5)], keys=None).bind(rows, batch_size=3)
    assert sorted(program(0)["label"][:, 0, 0, 0].tolist()) == [0, 1, 2]
    both = compile_transforms([RandFlipd(["image", "label"], prob=0.5)])
    with pytest.raises(ValueError, match="must cover the same voxels"):
        both.bind(rows, batch_size=1)
