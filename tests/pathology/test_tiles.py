from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hasten.augment.make_program import program_of
from hasten.augment.program import HostSource
from hasten.cases.slide import open_slide
from hasten.cases.slide.listing import find_slides
from hasten.feed.feed import Feed
from hasten.pathology.config import DetectionConfig
from hasten.pathology.tiles import Picked, make_batches, pick_tiles, read_tiles


@pytest.fixture
def picked(config: DetectionConfig) -> list[Picked]:
    return pick_tiles(find_slides(config.data.source), config)


def test_labels_are_what_the_mask_shows(config: DetectionConfig, picked: list[Picked]) -> None:
    assert any(each.labels.any() for each in picked)
    for each in picked:
        with open_slide(each.case.mask or "") as mask:
            for number, label in zip(each.numbers, each.labels, strict=True):
                y, x = each.grid.corner(int(number))
                share = (mask.read_region(0, y, x, 48, 48)[..., 0] == 1).mean()
                middle = (mask.read_region(0, y + 12, x + 12, 24, 24)[..., 0] == 1).mean()
                assert (middle > 0.03) if label else (share < 0.03)


def test_tiles_are_the_slides_pixels(config: DetectionConfig, picked: list[Picked]) -> None:
    tiles = read_tiles(picked, config)
    assert tiles.image.shape == (sum(len(each.numbers) for each in picked), 3, 48, 48)
    first = 0
    for each in picked:
        with open_slide(each.case.slide) as slide:
            last = len(each.numbers) - 1
            y, x = each.grid.corner(int(each.numbers[last]))
            expected = slide.read_region(0, y, x, 48, 48).transpose(2, 0, 1)
        np.testing.assert_array_equal(tiles.image[first + last].numpy(), expected)
        first += last + 1


def test_so_many_of_each_class_are_taken(config: DetectionConfig, picked: list[Picked]) -> None:
    few = pick_tiles(find_slides(config.data.source), replace(config, tiles=replace(config.tiles, per_slide=5)))
    for each, whole in zip(few, picked, strict=True):
        assert np.bincount(each.labels, minlength=2).max() <= 5
        assert set(each.numbers.tolist()) <= set(whole.numbers.tolist())


def test_batches_are_a_function_of_seed_and_step(config: DetectionConfig, picked: list[Picked]) -> None:
    tiles = read_tiles(picked, config)
    make = {"batch_size": 8, "device": torch.device("cpu"), "resident": True}
    batches = make_batches(tiles, config.augment, seed=1, **make)
    through = list(batches.batches(0, 4))
    image, label = batches(3)["image"], batches(3)["label"]
    assert torch.equal(image, through[3]["image"])
    assert torch.equal(label, through[3]["label"])
    assert image.shape == (8, 3, 48, 48)
    assert image.dtype == torch.float32
    assert -1.0 <= float(image.min()) < float(image.max()) <= 1.0
    other = make_batches(tiles, config.augment, seed=2, **make)(3)["image"]
    assert not torch.equal(image, other)


def test_tiles_gathered_on_the_host_make_the_same_batches(config: DetectionConfig, picked: list[Picked]) -> None:
    tiles = read_tiles(picked, config)
    make = {"batch_size": 8, "seed": 5, "device": torch.device("cpu")}
    resident, gathered = (make_batches(tiles, config.augment, **make, resident=each) for each in (True, False))
    assert not resident.latest.prepared_on_host
    elsewhere = program_of(replace(gathered.latest, source=HostSource(stages=0)))
    for one, other in zip(resident.batches(3, 30), Feed(elsewhere, first=3, last=30), strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])
