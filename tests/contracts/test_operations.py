"""What every random operation of the batch program owes its caller, whatever it does to a voxel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hasten.cache.arena import Tables
from hasten.sample.program import BatchProgram
from tests.sample.arenas import RENDERS, Shape, program_of, random_tables

OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "crop": ("foreground_prob", {}),
    "flip": ("flip_prob", {}),
    "affine": (
        "affine_prob",
        {"rotate_deg": (30.0, 30.0, 30.0), "scale_range": (0.7, 1.4), "shear": 0.2},
    ),
    "brightness": ("brightness_prob", {"brightness_range": (0.5, 0.9)}),
    "contrast": ("contrast_prob", {"contrast_range": (0.5, 0.9)}),
    "gamma": ("gamma_prob", {"gamma_range": (1.5, 2.0)}),
    "noise": ("noise_prob", {"noise_std": (0.1, 0.3)}),
}
"""Its probability, and strengths that cannot be drawn as "no change"."""
COUNT = 24

pytestmark = [
    pytest.mark.parametrize("name", OPERATIONS),
    pytest.mark.parametrize("num_dims", [2, 3]),
    pytest.mark.parametrize("renders", RENDERS),
]


def arena(num_dims: int) -> Tables:
    """Cases larger than the patch, smaller than it, and one without foreground."""
    shapes: list[Shape] = [(9, 11, 8), (4, 12, 5), (10, 10, 10)]
    return random_tables([(1, *shape[1:]) for shape in shapes] if num_dims == 2 else shapes, num_channels=2)


def make(
    name: str, num_dims: int, renders: str, prob: float | None, *, batch_size: int = COUNT, tables: Tables | None = None
) -> BatchProgram:
    """With `prob` None the operation is left as a program without any has it."""
    field, options = OPERATIONS[name]
    if prob is not None:
        options = {**options, field: (prob,) * 3 if name == "flip" else prob}
    patch = (1, 6, 5) if num_dims == 2 else (4, 6, 5)
    return program_of(
        tables or arena(num_dims), patch, batch_size=batch_size, renders=renders, **({} if prob is None else options)
    )


def changed(program: BatchProgram, plain: BatchProgram, step: int = 0) -> torch.Tensor:
    """(B,) whether image or label of a sample differs."""
    found, expected = program(step), plain(step)
    pairs = zip(found, expected, strict=True)
    return torch.stack([(a != b).flatten(1).any(1) for a, b in pairs]).any(0)


def test_probability_0_is_bit_identical_to_off(name: str, num_dims: int, renders: str) -> None:
    for step in range(3):
        assert not changed(make(name, num_dims, renders, 0.0), make(name, num_dims, renders, None), step).any()


def test_probability_1_changes_samples(name: str, num_dims: int, renders: str) -> None:
    """So that the other tests of this file look at something."""
    assert changed(make(name, num_dims, renders, 1.0), make(name, num_dims, renders, None)).sum() >= COUNT // 2


def test_samples_that_do_not_draw_it_are_bit_identical_to_off(name: str, num_dims: int, renders: str) -> None:
    """At one half some samples change and some do not; none changes that does not change at probability 1."""
    half, always, off = (make(name, num_dims, renders, prob) for prob in (0.5, 1.0, None))
    for step in range(2):
        sometimes = changed(half, off, step)
        assert 0.15 * COUNT < sometimes.sum() < 0.95 * COUNT
        assert (sometimes <= changed(always, off, step)).all()


def test_a_batch_is_its_samples_one_at_a_time(name: str, num_dims: int, renders: str) -> None:
    image, label = make(name, num_dims, renders, 0.5)(2)
    single = make(name, num_dims, renders, 0.5, batch_size=1)
    for number in range(COUNT):
        one_image, one_label = single(2 * COUNT + number)
        assert (image[number] - one_image[0]).abs().max() <= 1e-6
        assert torch.equal(label[number], one_label[0])


def test_the_same_seed_and_step_give_the_same_bits(name: str, num_dims: int, renders: str) -> None:
    first, again = make(name, num_dims, renders, 0.5), make(name, num_dims, renders, 0.5)
    again(0)
    assert not changed(again, first, step=3).any()
    reseeded = replace(again, seed=torch.tensor(1))
    assert changed(reseeded, first, step=3).any()


def test_labels_keep_their_set(name: str, num_dims: int, renders: str) -> None:
    tables = arena(num_dims)
    tables.label.mul_(100)
    _, label = make(name, num_dims, renders, 1.0, tables=tables)(0)
    assert label.dtype == torch.uint8
    assert set(label.unique().tolist()) == {0, 100, 200}


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e4])
def test_constant_images_stay_finite(name: str, num_dims: int, renders: str, value: float) -> None:
    tables = arena(num_dims)
    tables.image.fill_(value)
    image, _ = make(name, num_dims, renders, 1.0, tables=tables)(0)
    assert image.isfinite().all()
    assert image.abs().max() <= abs(value) * 1.0001 + (1.5 if name == "noise" else 0)
