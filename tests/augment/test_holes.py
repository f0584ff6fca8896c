"""Boxes that are dropped or shuffled: MONAI's result where it has no noise, and what holds for any noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from monai.transforms import RandCoarseDropout
from scipy.stats import chisquare, kstest
from torch import Tensor

from hasten.augment.holes import CoarseDropout, CoarseShuffle, inside
from hasten.augment.op import Drawn
from hasten.sample.random import sample_key

SHAPES = [(1, 9, 12), (3, 8, 7), (1, 8, 11, 6), (2, 5, 12, 9)]


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def boxes(drawn: Drawn, row: int) -> list[tuple[slice, ...]]:
    """The boxes of a sample, the channel first, as MONAI has them."""
    results = []
    for start, size in zip(drawn["start"][row].tolist(), drawn["size"][row].tolist(), strict=True):
        if min(size):
            results.append((slice(None), *(slice(a, a + b) for a, b in zip(start, size, strict=True))))
    return results


def drawn_over(drawn: Drawn, row: int, shape: tuple[int, ...]) -> Tensor:
    """(C, *S) bool: where the boxes of a sample lie."""
    mask = torch.zeros(shape, dtype=torch.bool)
    for box in boxes(drawn, row):
        mask[box] = True
    return mask


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dropout_holes", [True, False])
@pytest.mark.parametrize("most", [None, 3, -1])
def test_a_number_is_filled_in_as_monai_does(shape: tuple[int, ...], dropout_holes: bool, most: int | None) -> None:
    op = CoarseDropout(
        prob=1,
        holes=2,
        max_holes=4,
        spatial_size=2,
        max_spatial_size=most,
        fill_value=-1.5,
        dropout_holes=dropout_holes,
    )
    image, drawn = images(4, shape), op.draw(keys(4), shape)
    result = op.apply(image, drawn)
    peer = RandCoarseDropout(1, 1, fill_value=-1.5, dropout_holes=dropout_holes, prob=1)
    peer._do_transform = True
    for row in range(4):
        peer.hole_coords = boxes(drawn, row)
        assert torch.equal(result[row], torch.as_tensor(peer(image[row].clone(), randomize=False)).as_subclass(Tensor))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dropout_holes", [True, False])
@pytest.mark.parametrize("fill_value", [None, (2.0, 3.0)])
def test_noise_goes_where_boxes_are(
    shape: tuple[int, ...], dropout_holes: bool, fill_value: tuple[float, float] | None
) -> None:
    op = CoarseDropout(
        prob=1,
        holes=1,
        max_holes=3,
        spatial_size=1,
        max_spatial_size=3,
        fill_value=fill_value,
        dropout_holes=dropout_holes,
    )
    image, drawn = images(5, shape), op.draw(keys(5), shape)
    result = op.apply(image, drawn)
    for row in range(5):
        mask = drawn_over(drawn, row, shape)
        filled = mask if dropout_holes else ~mask
        assert torch.equal(result[row][~filled], image[row][~filled])
        low, high = fill_value or (float(image[row].min()), float(image[row].max()))
        assert low <= float(result[row][filled].min()) <= float(result[row][filled].max()) <= high
        assert result[row][filled].unique().numel() > 0.9 * int(filled.sum())


def test_noise_is_the_same_for_few_large_and_many_small_boxes() -> None:
    shape = (2, 20, 20, 20)
    small = CoarseDropout(prob=1, holes=2, max_holes=5, spatial_size=2, max_spatial_size=6, fill_value=(0.0, 1.0))
    image, drawn = images(3, shape), small.draw(keys(3), shape)
    large = replace(small, max_spatial_size=-1)
    assert torch.equal(small.apply(image, drawn), large.apply(image, drawn))


def test_noise_is_uniform() -> None:
    op = CoarseDropout(prob=1, holes=1, spatial_size=-1, fill_value=(1.0, 3.0))
    result = op.apply(images(1, (1, 50, 50)), op.draw(keys(1), (1, 50, 50)))
    assert kstest(result.flatten().numpy(), "uniform", args=(1.0, 2.0)).pvalue > 1e-3


@pytest.mark.parametrize("count", [1, 5, 31, 32, 70])
def test_any_number_of_boxes_is_marked(count: int) -> None:
    op = CoarseDropout(prob=1, holes=count, spatial_size=1, max_spatial_size=3, fill_value=0.0)
    drawn = op.draw(keys(3), (1, 9, 12, 20))
    result = inside(drawn["start"], drawn["size"], (9, 12, 20))
    for row in range(3):
        assert torch.equal(result[row], drawn_over(drawn, row, (1, 9, 12, 20))[0])


def test_a_size_below_one_or_above_the_side_is_the_side() -> None:
    drawn = CoarseDropout(prob=1, spatial_size=(-1, 100)).draw(keys(2), (1, 7, 9))
    assert drawn["size"].tolist() == [[[7, 9]], [[7, 9]]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("most", [None, 4, -1])
def test_shuffling_moves_values_within_boxes(shape: tuple[int, ...], most: int | None) -> None:
    op = CoarseShuffle(prob=1, holes=1, max_holes=3, spatial_size=3, max_spatial_size=most)
    image, drawn = images(6, shape), op.draw(keys(6), shape)
    result = op.apply(image, drawn)
    for row in range(6):
        mask = drawn_over(drawn, row, shape)
        assert torch.equal(result[row][~mask], image[row][~mask])
        assert not torch.equal(result[row], image[row])
        for channel in range(shape[0]):
            before, after = image[row, channel][mask[channel]], result[row, channel][mask[channel]]
            assert torch.equal(before.sort().values, after.sort().values)


def test_channels_and_boxes_are_shuffled_each_by_itself() -> None:
    image = torch.arange(64.0).view(1, 1, 8, 8).expand(1, 2, 8, 8).contiguous()
    drawn = {"start": torch.tensor([[[0, 0], [4, 4]]]), "size": torch.full((1, 2, 2), 4), "key": keys(1)}
    result = CoarseShuffle(prob=1, holes=2, spatial_size=4).apply(image, drawn)
    assert not torch.equal(result[0, 0], result[0, 1])
    assert not torch.equal(result[0, 0, :4, :4] + 36, result[0, 0, 4:, 4:])
    assert torch.equal(result[..., :4, 4:], image[..., :4, 4:])


def test_all_orders_are_equally_likely() -> None:
    op = CoarseShuffle(prob=1, holes=1, spatial_size=1, max_spatial_size=(2, 5))
    image = torch.arange(10.0).view(1, 1, 2, 5).expand(2400, 1, 2, 5)
    box = torch.tensor([[[0, 1]]]).expand(2400, 1, 2), torch.tensor([[[2, 2]]]).expand(2400, 1, 2)
    result = op.apply(image, {"start": box[0], "size": box[1], "key": keys(2400)})[:, 0, :, 1:3].flatten(1)
    _, counts = (result @ torch.tensor([1000.0, 100.0, 10.0, 1.0])).unique(return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts.numpy()).pvalue > 1e-3
