"""A chain bound to data: one account on the device, one on the host, and what both promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hasten.augment.affine import Affine, Spatial, Zoom
from hasten.augment.chain import Batch, Chain, Warp, stages_of
from hasten.augment.crop import CropByLabelClasses, CropByPosNegLabel, SpatialCrop
from hasten.augment.draw import Draws
from hasten.augment.grid import AxisFlip, Flip, Mirror, Resize, Rotate90
from hasten.augment.noise import GaussianNoise
from hasten.augment.program import Segment
from hasten.augment.render import render
from hasten.augment.store import store_of_items
from hasten.cache.arena import Store
from tests.augment.stores import bind_store

SIZES = {2: [(1, 20, 26), (1, 31, 18), (1, 17, 17)], 3: [(12, 20, 16), (9, 14, 22), (15, 13, 13)]}
PATCH = {2: (1, 12, 12), 3: (8, 12, 12)}


def store(dims: int, dtype: Any = np.float16, channels: int = 2) -> Store:
    rng = np.random.default_rng(0)
    items = []
    for number, size in enumerate(SIZES[dims] * 2):
        shape = size[3 - dims :]
        label = (rng.random(shape) < 0.1).astype(np.uint8) * (1 + number % 2)
        image = (rng.normal(size=(channels, *shape)) * 50 + 100).astype(dtype)
        items.append(
            (
                f"item {number}",
                {"image": image, "label": label[None], "weight": rng.random((1, *shape)).astype(np.float32)},
            )
        )
    return store_of_items(items, ["image", "label", "weight"])


def chain(dims: int, *ops: Any, crop: Any = None) -> Chain:
    own = crop or CropByPosNegLabel(size=PATCH[dims])  # type: ignore[arg-type]
    return Chain(crop=own, ops=ops, keys=("image", "label"), label_keys=("label",))


ALL = [
    Affine(prob=0.5, rotate_range=((-0.5, 0.5), (-0.3, 0.3)), padding_mode="border"),
    Zoom(prob=0.5, min_zoom=(0.8,), max_zoom=(1.2,)),
    Flip(prob=0.5, spatial_axis=(0,)),
    GaussianNoise(prob=0.5),
    Affine(prob=0.5, rotate_range=((-0.3, 0.3),) * 3, padding_mode="reflection"),
    Rotate90(prob=0.5, spatial_axes=(-2, -1)),
    GaussianNoise(prob=1),
]
MAPS = [
    Affine(prob=1, rotate_range=((0.2, 0.5),)), Zoom(prob=1, min_zoom=(0.7,), max_zoom=(0.9,)),
    
    Affine(prob=1, translate_range=((1, 2),) * 3), Spatial(rotate_prob=1), Flip(prob=1), AxisFlip(prob=1), Mirror(),
    Rotate90(prob=1), 
]  # fmt: skip
CHAINS: dict[str, list[Any]] = {
    "crop": [],
    "flips": [Flip(prob=0.5, spatial_axis=(0,)), AxisFlip(prob=0.5), Mirror(spatial_axis=(0, 1))],
    "spatial": [Spatial(), Mirror()],
    "all": ALL,
    "values": [GaussianNoise(prob=0.5), GaussianNoise(prob=0.5)],
}


def program(
    dims: int, name: str, *, seed: int = 0, batch_size: int = 5, dtype: Any = np.float16, crop: Any = None
) -> Segment:
    return bind_store(chain(dims, *CHAINS[name], crop=crop), store(dims, dtype), batch_size=batch_size, seed=seed)


def on_device(own: Segment, draws: Draws) -> Batch:
    return render(own.stages, own.stored(), draws, own.store.spatial_dims)


def equal(one: Batch, other: Batch) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


each_chain = pytest.mark.parametrize("name", CHAINS)
each_dims = pytest.mark.parametrize("dims", [2, 3])


@each_chain
@each_dims
@pytest.mark.parametrize("dtype", [np.float16, np.int16, np.uint8, np.float32], ids=lambda each: each.__name__)
def test_the_two_renderers_agree(name: str, dims: int, dtype: Any) -> None:
    own = program(dims, name, dtype=dtype)
    for draws in own.draws(0, 3):
        result, wanted = own.rendered(draws), on_device(own, draws)
        assert result["image"].dtype == wanted["image"].dtype == torch.float32
        assert result["label"].dtype == wanted["label"].dtype == torch.uint8
        assert result["image"].shape == wanted["image"].shape == (5, 2, *PATCH[dims][3 - dims :])
        assert torch.allclose(result["image"], wanted["image"], rtol=1e-5, atol=2e-3)
        assert torch.equal(result["label"], wanted["label"])
        assert set(result["label"].unique().tolist()) <= {0, 1, 2}


def test_adding_an_operation_at_the_end_changes_no_other() -> None:
    one = bind_store(chain(3, ALL[0], ALL[3]), store(3), batch_size=8)
    other = bind_store(chain(3, ALL[0], ALL[3], Flip(prob=1, spatial_axis=(2,))), store(3), batch_size=8)
    assert torch.equal(one(0)["image"].flip(-1), other(0)["image"])


@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_samples_of_one_case_follow_each_other(repeats: int) -> None:
    crop = CropByPosNegLabel(size=PATCH[3], num_samples=repeats)
    own = program(3, "crop", batch_size=4, crop=crop)
    cases = torch.cat([draws.case for draws in own.draws(0, 3 * repeats)]).view(-1, repeats)
    assert (cases == cases[:, :1]).all()
    assert sorted(cases[:6, 0].tolist()) == list(range(6))


def centres(crop: Any) -> tuple[Tensor, Draws]:
    """The labels of 3000 crops of one voxel."""
    own = bind_store(chain(3, crop=crop), store(3), batch_size=3000)
    draws = next(iter(own.draws(0, 1)))
    return own.rendered(draws)["label"].view(-1), draws


def test_posneg_crops_are_centred_with_their_ratio() -> None:
    values = centres(CropByPosNegLabel(size=(1, 1, 1), pos=3, neg=1))[0]
    assert abs((values > 0).float().mean().item() - 0.75) < 0.05


def test_class_crops_are_centred_with_their_ratios() -> None:
    crop = CropByLabelClasses(size=(1, 1, 1), num_classes=3, ratios=(1, 2, 1))
    values, draws = centres(crop)
    odd = draws.case % 2 == 1  # these hold classes 0 and 2, the others 0 and 1
    assert abs((values[odd] == 2).float().mean().item() - 0.5) < 0.05
    assert abs((values[~odd] == 1).float().mean().item() - 2 / 3) < 0.05


def image_of(data: Store, case: int) -> Tensor:
    depth, height, width = data.shape[case].tolist()
    first = int(data.offset[case])
    return data.values["image"][2 * first : 2 * (first + depth * height * width)].view(2, depth, height, width).float()


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([Rotate90(prob=0.5, spatial_axes=(0, 1))], r"Rotate90: spatial_axes=\(0, 1\) are 8 and 12"),
        ([Flip(keys=("image", "mask"))], 'Flip: keys: "mask"'),
        ([GaussianNoise(keys=("t1",))], 'GaussianNoise: keys: "t1"'),
        ([Resize(keys=("image",), spatial_size=(4, 4, 4), mode=("bilinear",))], "Resize: the keys would end"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(ops: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind_store(chain(3, *ops), store(3), batch_size=2)


def test_labels_are_never_read_between_voxels() -> None:
    with pytest.raises(ValueError, match='Affine: mode: "label" holds classes'):
        chain(3, Affine(mode=("bilinear", "bilinear")))


def test_a_patch_larger_than_the_cases_is_refused() -> None:
    with pytest.raises(ValueError, match=r"CropByPosNegLabel: .*\(50, 50, 50\) does not fit.*every"):
        bind_store(chain(3, crop=CropByPosNegLabel(size=(50, 50, 50))), store(3), batch_size=2)
    with pytest.raises(ValueError, match="2 of 6 cases are smaller, such as item 1"):
        bind_store(chain(3, crop=SpatialCrop(size=(10, 13, 13))), store(3), batch_size=2)


def test_a_crop_key_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match='CropByPosNegLabel: label_key or w_key="seg" is not among'):
        bind_store(chain(3, crop=CropByPosNegLabel(size=PATCH[3], label_key="seg")), store(3), batch_size=2)


def test_without_a_crop_items_must_be_alike() -> None:
    bare = Chain(crop=None, ops=(), keys=("image", "label"))
    with pytest.raises(ValueError, match=r"item 0 has .* add a crop"):
        bind_store(bare, store(3), batch_size=2)


def test_neighbouring_maps_share_one_interpolation() -> None:
    own = chain(
        3,
        ALL[0],
        Zoom(prob=0.2),
        Flip(),
        GaussianNoise(),
        Flip(),
        Affine(padding_mode="zeros"),
        Affine(padding_mode="border"),
    )
    stages = stages_of(own, PATCH[3])  # type: ignore[arg-type]
    kinds = [len(stage.readings["image"].ops) if isinstance(stage, Warp) else "value" for stage in stages]
    assert kinds == [3, "value", 2, 1]


def test_the_background_channel_of_a_one_hot_label_is_no_foreground() -> None:
    label = np.zeros((3, 4, 5, 6), np.uint8)
    label[0] = 1
    label[:, 1, 2, 3] = (0, 0, 1)
    foreground, background = CropByPosNegLabel(size=(1, 1, 1)).sets(label, None, 0)
    assert foreground.tolist() == [1 * 30 + 2 * 6 + 3]
    assert len(background) == 4 * 5 * 6 - 1
