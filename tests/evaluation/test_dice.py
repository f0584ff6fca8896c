from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.evaluation.dice import Dice, confusion_counts, counts_of, dice_of


def measure(predictions: list[Tensor], labels: list[Tensor], num_classes: int) -> Dice:
    counts = [counts_of(p, label, num_classes=num_classes) for p, label in zip(predictions, labels, strict=True)]
    return dice_of(torch.stack(counts), [f"class {number}" for number in range(1, num_classes)])


def by_sets(prediction: Tensor, label: Tensor, num_classes: int) -> list[float]:
    """Dice of each foreground class by the definition: 2 |P & L| / (|P| + |L|) of sets of voxels; nan without label."""
    results = []
    for number in range(1, num_classes):
        predicted = {tuple(place) for place in np.argwhere(prediction.numpy() == number).tolist()}
        labelled = {tuple(place) for place in np.argwhere(label.numpy() == number).tolist()}
        results.append(
            2 * len(predicted & labelled) / (len(predicted) + len(labelled)) if labelled else math.nan,
        )
    return results


def mean_of(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


cases = st.integers(2, 5).flatmap(
    lambda num_classes: st.tuples(
        st.just(num_classes),
        st.lists(
            st.tuples(
                st.integers(0, 2**32 - 1),
                st.tuples(*[st.integers(1, 5)] * 3),
                st.integers(1, num_classes),  # classes that the label draws from: some stay empty
                st.integers(1, num_classes),
                st.booleans(),  # predicted perfectly
            ),
            min_size=1,
            max_size=4,
        ),
    )
)


@given(cases)
@settings(deadline=None, max_examples=60)
def test_it_equals_the_definition(drawn: tuple[int, list]) -> None:
    num_classes, specs = drawn
    predictions, labels = [], []
    for seed, shape, in_label, in_prediction, perfect in specs:
        generator = torch.Generator().manual_seed(seed)
        label = torch.randint(in_label, shape, generator=generator).to(torch.uint8)
        other = torch.randint(in_prediction, shape, generator=generator).to(torch.uint8)
        labels.append(label)
        predictions.append(label.clone() if perfect else other)
    measured = measure(predictions, labels, num_classes)
    reference = [by_sets(p, label, num_classes) for p, label in zip(predictions, labels, strict=True)]

    assert measured.per_case == pytest.approx([mean_of(row) for row in reference], abs=1e-12, nan_ok=True)
    assert list(measured.per_class.values()) == pytest.approx(
        [mean_of([row[place] for row in reference]) for place in range(num_classes - 1)], abs=1e-12, nan_ok=True
    )
    assert measured.mean == pytest.approx(mean_of([mean_of(row) for row in reference]), abs=1e-12, nan_ok=True)


# IoU


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(2, 4))
def test_dice_and_iou_are_monais_and_iou_follows_from_each_dice(seed: int, num_classes: int) -> None:
    from monai.metrics import DiceMetric, MeanIoU

    generator = torch.Generator().manual_seed(seed)
    maps = [
        [torch.randint(0, num_classes, (3, 4, 5), generator=generator, dtype=torch.uint8) for _ in range(3)]
        for _ in range(2)
    ]
    measured = measure(*maps, num_classes)
    iou = [[dice / (2 - dice) for dice in by_sets(*pair, num_classes)] for pair in zip(*maps, strict=True)]
    assert measured.iou == pytest.approx(mean_of([mean_of(row) for row in iou]), nan_ok=True)
    for row, value in zip(zip(*iou, strict=True), measured.iou_per_class.values(), strict=True):
        assert value == pytest.approx(mean_of(list(row)), nan_ok=True)
    hot = [torch.nn.functional.one_hot(torch.stack(each).long(), num_classes).movedim(-1, 1) for each in maps]
    for metric, ours in ((MeanIoU, measured.iou), (DiceMetric, measured.mean)):
        theirs = metric(include_background=False, ignore_empty=True)
        theirs(*hot)
        assert ours == pytest.approx(float(theirs.aggregate()), rel=1e-6)


# Regions

MEMBERS = ((1, 2, 3), (1, 3), (3,))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999))
def test_the_counts_of_regions_are_those_of_sets_of_voxels(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(3, 2, 3, 4, generator=generator) < 0.5
    label = torch.randint(0, 4, (2, 3, 4), generator=generator, dtype=torch.uint8)
    for mask, members, row in zip(
        masks, MEMBERS, counts_of(masks, label, num_classes=0, regions=MEMBERS).tolist(), strict=True
    ):
        predicted = {tuple(place) for place in mask.nonzero().tolist()}
        labelled = {place for place in np.ndindex(2, 3, 4) if int(label[place]) in members}
        assert row == [len(predicted & labelled), len(predicted), len(labelled)]


@given(seed=st.integers(0, 1000), regions=st.sampled_from([(), ((1, 2), (2,))]))
def test_ignored_voxels_are_not_counted(seed: int, regions: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (3, 4, 5), generator=generator).to(torch.uint8)
    label[torch.rand(label.shape, generator=generator) < 0.5] = 255
    shape = (len(regions), 3, 4, 5) if regions else (3, 4, 5)
    result = torch.randint(0, 2 if regions else 3, shape, generator=generator).to(
        torch.bool if regions else torch.uint8
    )
    counts = counts_of(result, label, num_classes=3, regions=regions, ignore_index=255)
    kept = label != 255
    left = (result[..., kept][..., None, None], label[kept][:, None, None])
    assert torch.equal(counts, counts_of(*left, num_classes=3, regions=regions))


def test_more_voxels_than_float32_can_count() -> None:
    size = 2**24 + 3
    predicted = torch.ones(1, 1, size, dtype=torch.uint8)
    labelled = predicted.clone()
    labelled[..., 0] = 0
    assert confusion_counts(predicted, labelled).tolist() == [[[size - 1, 1, 0, 0]]]
    assert confusion_counts(predicted, labelled, 2)[0, 1].tolist() == [size - 1, 1, 0, 0]
