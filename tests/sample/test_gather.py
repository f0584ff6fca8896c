from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

from hasten.cache.arena import Store
from hasten.sample.gather import gather_flat, majority_flat, nearest_flat
from hasten.sample.host import majority_class, places_at
from tests.augment.stores import RENDERERS, batch_by, case_values, random_store, segment_of, store_of


def gathered(
    store: Store, key: str, case: torch.Tensor, start: torch.Tensor, coordinates: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """(B, C, D, H, W) between voxels for the image, of the nearest ones for the label."""
    places: Any = coordinates
    given = (store.values[key], store.shape[case], store.offset[case], start, places, store.channels[key])
    return nearest_flat(*given) if key == "label" else gather_flat(*given, 3)


def test_agrees_with_scipy_at_any_coordinate() -> None:
    store = random_store([(4, 5, 6), (7, 5, 3)], num_channels=2)
    places = torch.rand((3, 2, 1, 1, 200), generator=torch.Generator().manual_seed(0)) * 12 - 3
    start, case = torch.tensor([[1, -2, 0], [0, 1, -1]]), torch.tensor([1, 0])
    actual, label = (gathered(store, key, case, start, tuple(places)) for key in ("image", "label"))
    for sample in range(2):
        at = places[:, sample, 0, 0].double().numpy() + start[sample].numpy()[:, None]
        volume = case_values(store, "image", int(case[sample])).double().numpy()
        for channel in range(2):
            expected = ndimage.map_coordinates(np.pad(volume[channel], 4), at + 4, order=1)
            np.testing.assert_allclose(actual[sample, channel, 0, 0], expected, atol=1e-5)
        classes = np.pad(case_values(store, "label", int(case[sample]))[0].numpy(), 8)
        nearest = np.floor(at + 0.5).astype(int) + 8
        np.testing.assert_array_equal(label[sample, 0, 0, 0], classes[tuple(nearest)])


def test_whole_coordinates_give_stored_voxels_bit_for_bit() -> None:
    store = random_store([(3, 4, 5)], dtype="float16")
    grid = torch.meshgrid(*[torch.arange(float(size)) for size in (3, 4, 5)], indexing="ij")
    result = gathered(store, "image", torch.tensor([0]), torch.zeros(1, 3), tuple(axis[None] for axis in grid))
    assert torch.equal(result[0], case_values(store, "image", 0).float())


def test_halves_round_up_to_the_next_label() -> None:
    store = store_of([np.zeros((1, 1, 1, 4), np.float32)], [np.arange(4, dtype=np.uint8).reshape(1, 1, 4)], 4)
    w = torch.tensor([-0.5, 0.5, 1.5, 2.4999, 3.4999, 3.5]).view(1, 1, 1, -1)
    places = (torch.zeros_like(w), torch.zeros_like(w), w)
    label = gathered(store, "label", torch.tensor([0]), torch.zeros(1, 3), places)
    assert label.flatten().tolist() == [0, 1, 2, 2, 3, 0]


@pytest.mark.parametrize("dims", [2, 3])
def test_the_class_with_the_largest_share_wins(dims: int) -> None:
    shape = (1, 9, 8) if dims == 2 else (7, 9, 8)
    rng = np.random.default_rng(dims)
    volume = torch.from_numpy(rng.integers(0, 4, shape)).to(torch.uint8)
    places = torch.rand((3, 1, 1, 1, 400), generator=torch.Generator().manual_seed(0)) * 12 - 2
    if dims == 2:
        places[0] = 0
    columns = (places[0], places[1], places[2])
    start = torch.tensor([[0, 1, -1]])
    whole, offset = torch.tensor([shape]), torch.zeros(1, dtype=torch.int64)
    batched = majority_flat(volume.flatten(), whole, offset, start, columns, 1, dims).flatten()
    single = torch.empty(1, 400, dtype=torch.uint8)
    majority_class(volume[None], places_at([0, 1, -1], tuple(each.flatten() for each in columns), dims), single)
    assert torch.equal(batched, single[0])
    at = (places[:, 0, 0, 0] + start.T).double().numpy()
    padded = np.pad(volume.numpy(), [(0, 0) if dims == 2 and axis == 0 else (6, 6) for axis in range(3)])
    at += np.array([[0 if dims == 2 else 6], [6], [6]])
    shares = np.stack([ndimage.map_coordinates((padded == each).astype(float), at, order=1) for each in range(4)])
    ranked = np.sort(shares, axis=0)
    clear = ranked[-1] - ranked[-2] > 1e-3
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(batched.numpy()[clear], shares.argmax(0)[clear])


def test_of_equal_shares_the_nearest_class_wins() -> None:
    """A third down, between 1 and 2 above and 3 and 3 below, each class has a third."""
    volume, start = torch.tensor([[[1, 2], [3, 3]]], dtype=torch.uint8), torch.zeros(1, 3, dtype=torch.int64)
    places = tuple(torch.full((1, 1, 1, 1), at) for at in (0.0, 1 / 3, 0.5))
    whole, offset = torch.tensor([volume.shape]), torch.zeros(1, dtype=torch.int64)
    assert majority_flat(volume.flatten(), whole, offset, start, places, 1, 2).item() == 2  # type: ignore[arg-type]


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


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_case_beyond_two_billion_voxels_is_found(huge: tuple[torch.Tensor, torch.Tensor], renderer: str) -> None:
    image, label = huge
    small = random_store([(2, 3, 4), (4, 5, 6)], dtype="float16")
    offset = 2**31 + 17
    image[offset : offset + 120] = small.values["image"][24:]
    label[offset : offset + 120] = small.values["label"][24:]
    large = replace(small, values={"image": image, "label": label}, offset=torch.tensor([0, offset]))
    options: dict[str, Any] = {"affine_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5), "foreground_prob": 0.5}
    actual, expected = (
        batch_by(renderer, segment_of(store, (3, 4, 5), train_cases=(1,), **options), 0) for store in (large, small)
    )
    assert torch.equal(actual["image"], expected["image"])
    assert torch.equal(actual["label"], expected["label"])
    assert expected["image"].any()
