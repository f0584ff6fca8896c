"""The first stage's masks: channels, and nnU-Net's changes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hasten.augment.chain import Batch
from hasten.nnunet.cascade import (
    LABEL_PROB,
    OPERATOR_PROB,
    OPERATORS,
    RADIUS,
    REMOVAL_PROB,
    FirstStage,
    MaskChanges,
    change_masks,
    draw_changes,
    with_masks,
)


def masks(seed: int, shape: tuple[int, ...] = (30, 34, 32), num_labels: int = 3) -> torch.Tensor:
    """(L, *S) of some boxes, none on top of another."""
    rng = np.random.default_rng(seed)
    label_map = np.zeros(shape, np.uint8)
    for _ in range(6):
        low = [int(rng.integers(0, side - 3)) for side in shape]
        label_map[tuple(slice(each, each + int(rng.integers(1, 6))) for each in low)] = rng.integers(1, num_labels + 1)
    return torch.from_numpy(np.stack([label_map == label for label in range(1, num_labels + 1)]).astype(np.uint8))


def test_draws_are_nnunets() -> None:
    drawn = [draw_changes(np.random.default_rng([8, number]), 4) for number in range(4000)]
    operators = [each for one in drawn for each in one.operators]
    assert len(operators) / 16000 == pytest.approx(OPERATOR_PROB * LABEL_PROB, abs=0.015)
    assert sum(len(one.removals) for one in drawn) / 16000 == pytest.approx(REMOVAL_PROB * LABEL_PROB, abs=0.015)
    for name in OPERATORS:
        assert sum(operator == name for _, operator, _ in operators) / len(operators) == pytest.approx(0.25, abs=0.03)
    radii = [radius for _, _, radius in operators]
    assert RADIUS[0] <= min(radii) < 1.05
    assert 7.95 < max(radii) <= RADIUS[1]
    firsts = [one.operators[0][0] for one in drawn if len(one.operators) == 4]
    assert set(firsts) == {0, 1, 2, 3}


@pytest.mark.parametrize("shape", [(30, 34, 32), (40, 44)])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("radius", [1.0, 2.3, 4.5, 5.7, 8.0])
def test_operators_are_nnunets_on_the_whole_patch(shape: tuple[int, ...], operator: str, radius: float) -> None:
    nnunet = pytest.importorskip("batchgeneratorsv2.transforms.nnunet.random_binary_operator")
    transform = nnunet.ApplyRandomBinaryOperatorTransform([0, 1, 2])
    for seed in range(3):
        function = getattr(nnunet, f"binary_{operator}_torch")
        expected = transform._apply_to_image(
            masks(seed, shape), apply_to_channels=[2, 0], operators=[function] * 2, strel_size=[radius] * 2
        )
        changes = MaskChanges(operators=((2, operator, radius), (0, operator, radius)), removals=())
        assert torch.equal(change_masks(masks(seed, shape), changes), expected)


def test_one_small_component_goes() -> None:
    pytest.importorskip("skimage")
    mask = torch.zeros(1, 20, 20, 20, dtype=torch.uint8)
    mask[0, :10] = 1  # half of the patch: too large
    mask[0, 12:14, 2:4, 2:4] = 1
    mask[0, 17:19, 2:4, 2:4] = 1
    first = change_masks(mask.clone(), MaskChanges(operators=(), removals=((0, 0.0),)))
    second = change_masks(mask.clone(), MaskChanges(operators=(), removals=((0, 0.99),)))
    assert first[0, :10].all()
    assert second[0, :10].all()
    assert (int(first.sum()), int(second.sum())) == (4008, 4008)
    assert not torch.equal(first, second)
    nothing = torch.zeros(1, 4, 4, 4, dtype=torch.uint8)
    everything = MaskChanges(operators=((0, "dilation", 2.0),), removals=((0, 0.5),))
    assert not change_masks(nothing, everything).any()


def batches(count: int) -> Iterator[Batch]:
    """From the same memory each time, as a ring of slots gives them."""
    image, previous = torch.empty(2, 1, 16, 16, 16), torch.empty(2, 1, 16, 16, 16, dtype=torch.uint8)
    for step in range(count):
        image.fill_(float(step))
        for row in range(2):
            whole = masks(10 * step + row, (16, 16, 16), 2)
            previous[row, 0] = 1 + whole[0] + 2 * whole[1]
        yield {"image": image, "label": previous.clone(), "previous": previous}


def channels(stage: FirstStage, *, first: int = 0, threads: int = 2, count: int = 8) -> list[Any]:
    source = batches(count)
    for _ in range(first):
        next(source)
    return [batch["image"] for batch in with_masks(source, stage, first=first, threads=threads)]


def test_masks_become_channels() -> None:
    for step, image in enumerate(channels(FirstStage(labels=(1, 2), seed=None))):
        assert torch.equal(image[:, 0], torch.full((2, 16, 16, 16), float(step)))
        for row in range(2):
            assert torch.equal(image[row, 1:], masks(10 * step + row, (16, 16, 16), 2).float())


def test_changes_are_a_function_of_seed_and_step() -> None:
    pytest.importorskip("batchgeneratorsv2.transforms.nnunet.random_binary_operator")
    plain, stage = channels(FirstStage(labels=(1, 2), seed=None)), FirstStage(labels=(1, 2), seed=3)
    changed = channels(stage)
    assert len(changed) == len(plain) == 8
    assert any(not torch.equal(one, other) for one, other in zip(plain, changed, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(channels(stage, threads=1), changed, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(channels(stage, first=3), changed[3:], strict=True))
    other_seed = channels(FirstStage(labels=(1, 2), seed=4))
    assert any(not torch.equal(one, other) for one, other in zip(other_seed, changed, strict=True))
