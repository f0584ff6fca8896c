from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

from hasten.sample.gather import gather_image, gather_label
from hasten.sample.reference import reference_sample
from tests.sample.arenas import RENDERS, case_image, case_label, program_of, random_tables, tables_of


def test_agrees_with_scipy_at_any_coordinate() -> None:
    tables = random_tables([(4, 5, 6), (7, 5, 3)], num_channels=2)
    places = torch.rand((3, 2, 1, 1, 200), generator=torch.Generator().manual_seed(0)) * 12 - 3
    start, case = torch.tensor([[1, -2, 0], [0, 1, -1]]), torch.tensor([1, 0])
    found = gather_image(tables, case, start, tuple(places), 2, 3)
    label = gather_label(tables, case, start, tuple(places))
    for sample in range(2):
        at = places[:, sample, 0, 0].double().numpy() + start[sample].numpy()[:, None]
        volume = case_image(tables, int(case[sample])).double().numpy()
        for channel in range(2):
            expected = ndimage.map_coordinates(np.pad(volume[channel], 4), at + 4, order=1)
            np.testing.assert_allclose(found[sample, channel, 0, 0], expected, atol=1e-5)
        classes = np.pad(case_label(tables, int(case[sample])).numpy(), 8)
        nearest = np.floor(at + 0.5).astype(int) + 8
        np.testing.assert_array_equal(label[sample, 0, 0, 0], classes[tuple(nearest)])


def test_whole_coordinates_give_stored_voxels_bit_for_bit() -> None:
    tables = random_tables([(3, 4, 5)], dtype="float16")
    grid = torch.meshgrid(*[torch.arange(float(size)) for size in (3, 4, 5)], indexing="ij")
    found = gather_image(tables, torch.tensor([0]), torch.zeros(1, 3), tuple(axis[None] for axis in grid), 1, 3)
    assert torch.equal(found[0], case_image(tables, 0).float())


def test_halves_round_up_to_the_next_label() -> None:
    tables = tables_of([np.zeros((1, 1, 1, 4), np.float32)], [np.arange(4, dtype=np.uint8).reshape(1, 1, 4)], 4)
    w = torch.tensor([-0.5, 0.5, 1.5, 2.4999, 3.4999, 3.5]).view(1, 1, 1, -1)
    label = gather_label(tables, torch.tensor([0]), torch.zeros(1, 3), (torch.zeros_like(w), torch.zeros_like(w), w))
    assert label.flatten().tolist() == [0, 1, 2, 2, 3, 0]


@pytest.mark.parametrize("renders", RENDERS)
def test_weights_are_exact_far_into_a_large_image(renders: str) -> None:
    """A float32 coordinate near 100 000 has steps of 1/128 voxel, so the start is kept apart from it."""
    tables = random_tables([(1, 5, 120_000)])
    program = program_of(tables, (1, 5, 16), affine_prob=1.0, batch_size=6, renders=renders)
    image, _ = program(0)
    for number in range(6):
        expected, _ = reference_sample(program.spec, tables, (0,), 0, number)
        assert np.abs(image[number].numpy() - expected).max() < 1e-5


@pytest.fixture
def huge(tmp_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Files with holes: they hold more than 2**31 voxels and take no room."""
    size = 2**31 + 200
    tensors = []
    for name, dtype, item in (("image", torch.float16, 2), ("label", torch.uint8, 1)):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(size * item)
        tensors.append(torch.from_file(str(tmp_path / name), shared=True, size=size, dtype=dtype))
    return tensors[0], tensors[1]


@pytest.mark.parametrize("renders", RENDERS)
def test_a_case_beyond_two_billion_voxels_is_found(huge: tuple[torch.Tensor, torch.Tensor], renders: str) -> None:
    image, label = huge
    small = random_tables([(2, 3, 4), (4, 5, 6)], dtype="float16")
    offset = 2**31 + 17
    image[offset : offset + 120] = small.image[24:]
    label[offset : offset + 120] = small.label[24:]
    large = replace(small, image=image, label=label, offset=torch.tensor([0, offset]))
    options: dict[str, Any] = {
        "renders": renders,
        "affine_prob": 0.5,
        "flip_prob": (0.5, 0.5, 0.5),
        "foreground_prob": 0.5,
    }
    expected = program_of(small, (3, 4, 5), train_cases=(1,), **options)(0)
    program = program_of(small, (3, 4, 5), train_cases=(1,), **options)
    found = replace(program, tables=large)(0)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert expected[0].any()
