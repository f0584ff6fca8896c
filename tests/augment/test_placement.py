"""Where cases lie, and how far a batch is made there, changes no batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from monai.transforms import RandLambdad
from torch.utils import _pytree as pytree

from hasten.augment.affine import Affine
from hasten.augment.chain import Batch, Chain, PerSample
from hasten.augment.crop import ForegroundCrop
from hasten.augment.grid import Flip
from hasten.augment.make_program import CaseSource, make_segment, program_of
from hasten.augment.noise import GaussianNoise
from hasten.augment.presets import default_chain
from hasten.augment.program import HostSource, Segment
from hasten.augment.whole_cases import Items, WholeCases
from hasten.cache.arena import Store
from hasten.config.schema import SampleConfig
from hasten.feed.feed import Feed
from tests.augment.stores import Shape, case_values, random_store

SHAPES: list[Shape] = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8)]
PATCH: dict[int, Shape] = {2: (1, 5, 6), 3: (4, 5, 6)}
SETTINGS: dict[str, Any] = {
    "flip_prob": (0.5, 0.5, 0.5),
    **{f"{name}_prob": 0.5 for name in ("foreground", "affine", "brightness", "contrast", "gamma", "noise")},
}
OPS: dict[str, tuple[Any, ...]] = {
    "two reads": (Affine(prob=0.5, rotate_range=((-0.5, 0.5),)), GaussianNoise(prob=0.5), Flip(prob=0.5)),
    "sample by sample": (
        Flip(prob=0.5),
        GaussianNoise(prob=0.5),
        PerSample(transforms=(RandLambdad("image", func=lambda image: image * 2, prob=0.5),)),
        Affine(prob=0.5, rotate_range=((-0.5, 0.5),)),
    ),
}
CHAINS = ("default", *OPS)


def store_of_dims(dims: int, num_channels: int = 1, shapes: Sequence[Shape] = SHAPES) -> Store:
    flat: list[Shape] = [(1, *shape[1:]) for shape in shapes]
    store = random_store(flat if dims == 2 else shapes, num_channels=num_channels, dtype="float16")
    return replace(store, per_case={"site": torch.arange(len(shapes)) * 10})


def chain_of(name: str, dims: int) -> Chain:
    patch = PATCH[dims]
    if name == "default":
        return default_chain(SampleConfig(**SETTINGS), patch=patch, spatial_dims=dims)
    crop = ForegroundCrop(size=patch)
    return Chain(crop=crop, ops=OPS[name], keys=("image", "label"), label_keys=("label",))


def segment(chain: Chain, store: Store, **cases: Any) -> Segment:
    return make_segment(chain, CaseSource(store=store, **cases), batch_size=3, seed=5)


def assert_the_same(own: Segment, wanted: Segment) -> None:
    """By way of the ring, and in line. One after the other: transforms of MONAI's hold a random state."""
    expected = list(wanted.batches(2, 8))
    ring = [pytree.tree_map(torch.clone, batch) for batch in Feed(program_of(own), first=2, last=8)]
    for actual in (ring, list(own.batches(2, 8))):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


each_chain = pytest.mark.parametrize("name", CHAINS)
mostly_3d = pytest.mark.parametrize("dims", [pytest.param(2, marks=pytest.mark.slow), 3])


@each_chain
@mostly_3d
def test_a_batch_may_be_handed_over_after_any_stage(dims: int, name: str) -> None:
    own = segment(chain_of(name, dims), store_of_dims(dims))
    least = 4 if name == "sample by sample" else 1
    for stages in range(least, len(own.stages) + 1):
        assert_the_same(replace(own, source=HostSource(stages=stages)), own)


@each_chain
@mostly_3d
def test_without_a_crop_whole_samples_are_handed_over(dims: int, name: str) -> None:
    """And values of each case go with them."""
    chain = replace(chain_of(name, dims), crop=None)
    store = store_of_dims(dims, 2, [(4, 5, 6)] * 4)
    own = segment(chain, store)
    least = 3 if name == "sample by sample" else 0
    for stages in range(least, len(own.stages) + 1):
        assert_the_same(replace(own, source=HostSource(stages=stages)), own)
    assert own(0)["site"].tolist() == [10 * case for case in next(iter(own.draws(0, 1))).case.tolist()]


@each_chain
@mostly_3d
def test_samples_that_transforms_made_of_whole_cases_are_handed_over(dims: int, name: str) -> None:
    cases = store_of_dims(dims, 1, [(4, 5, 6)] * 4)

    def item(case: int) -> Batch:
        whole = {key: case_values(cases, key, case).clone() for key in ("image", "label")}
        return whole if dims == 3 else {key: value[:, 0] for key, value in whole.items()}

    transforms = (RandLambdad("image", func=lambda image: image + 3, prob=0.5),)
    source = WholeCases(
        transforms=transforms, keys=("image", "label"), seed=5, train_cases=(0, 1, 2, 3),
        items=Items(count=4, get=item, name=str),
    )  # fmt: skip
    example = replace(store_of_dims(dims, 1, [(4, 5, 6)]), per_case={})
    own = segment(replace(chain_of(name, dims), crop=None), example, whole_cases=source)
    least = 3 if name == "sample by sample" else 0
    for stages in range(least, len(own.stages) + 1):
        assert_the_same(replace(own, source=HostSource(stages=stages, whole_cases=source)), own)


@pytest.mark.parametrize(("name", "crops", "stages"), [
    ("default", True, 1), ("default", False, 0), ("two reads", True, 1), ("sample by sample", True, 3),
    ("sample by sample", False, 3),
])  # fmt: skip
def test_the_host_does_what_only_it_can(name: str, crops: bool, stages: int) -> None:
    chain = chain_of(name, 3) if crops else replace(chain_of(name, 3), crop=None)
    own = make_segment(
        chain, CaseSource(store=store_of_dims(3, 1, [(4, 5, 6)] * 2)), batch_size=2, seed=0, device="meta"
    )
    assert own.prepared_on_host
    assert own.source == HostSource(stages=stages)
    assert own.why_not_captured is not None
