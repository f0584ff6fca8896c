"""Rendering as a compiler sees it: one graph, and the batch that it makes without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils._pytree import tree_leaves

from hasten.augment.chain import Chain
from hasten.augment.crop import SpatialCrop
from hasten.augment.elastic import Elastic
from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.noise import GaussianNoise
from hasten.augment.presets import brats_chain, default_chain, nnunet_chain, pathology_chain
from hasten.augment.render import render
from hasten.config.schema import SampleConfig, Triple
from tests.augment.stores import RENDERERS, batch_by, bind_store, random_store


def chains(dims: int) -> dict[str, tuple[Chain, int]]:
    """Chains that read an image between its voxels, or at them, and how many channels it has."""
    patch: Triple = (1 if dims == 2 else 8, 8, 8)
    crop = SpatialCrop(size=patch, pad=True)
    grid = Chain(crop=crop, ops=(Elastic(prob=1, magnitude_range=(2, 3)),), keys=("image", "label"))
    return {
        "default": (default_chain(SampleConfig(patch=patch), patch=patch, spatial_dims=dims), 2),
        "nnunet": (nnunet_chain(patch, spatial_dims=dims, num_channels=3), 3),
        "brats": (brats_chain(patch, crop=crop, spatial_dims=dims), 4),
        "pathology": (pathology_chain(crop=crop, label=True), 3),
        "elastic": (grid, 2),
    }


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dims", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", chains(3))
def test_a_traced_batch_of_several_channels_is_the_batch(name: str, dims: int) -> None:
    chain, channels = chains(dims)[name]
    shapes = [(1 if dims == 2 else side, 12, side) for side in (9, 6, 11)]
    segment = bind_store(chain, random_store(shapes, num_channels=channels, dtype="float16"), batch_size=6)
    draws = next(segment.draws(0, 1))
    traced = torch.compile(render, backend="eager", fullgraph=True, dynamic=False)
    arguments = (segment.stages, segment.stored(), draws, segment.store.spatial_dims, {})
    result, wanted = traced(*arguments), render(*arguments)
    assert wanted["image"].shape[:2] == (6, channels)
    for key, value in wanted.items():
        assert result[key].dtype == value.dtype
        assert result[key].stride() == value.stride()
        # Sums of colours are vectorised otherwise where memory lies otherwise.
        assert torch.allclose(result[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_drawing_is_one_graph_too(dims: int) -> None:
    chain, channels = chains(dims)["default"]
    shapes = [(1 if dims == 2 else side, 12, side) for side in (9, 6, 11)]
    segment = bind_store(chain, random_store(shapes, num_channels=channels, dtype="float16"), batch_size=6)
    sample = torch.arange(6)
    wanted = segment.drawn(sample)
    result = torch.compile(segment.drawn, backend="eager", fullgraph=True, dynamic=False)(sample)
    for one, other in zip(tree_leaves(result), tree_leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("prob", [1, 0.5])
def test_labels_of_which_boxes_change_stay_classes(renderer: str, prob: float) -> None:
    crop, keys = SpatialCrop(size=(8, 8, 8)), ("image", "label")
    shuffle = CoarseShuffle(prob=prob, keys=keys, spatial_size=4)
    for fill, wanted in ((0.0, {0, 1, 2}), (-1.0, {0, 1, 2}), (300.0, {0, 1, 2, 255})):
        dropout = CoarseDropout(prob=prob, keys=keys, spatial_size=4, fill_value=fill)
        chain = Chain(crop=crop, ops=(dropout, shuffle), keys=keys, label_keys=("label",))
        own = bind_store(chain, random_store([(9, 12, 12)] * 2, dtype="uint8"), batch_size=6)
        batch = batch_by(renderer, own, 0)
        assert batch["image"].dtype == torch.float32
        assert batch["label"].dtype == torch.uint8
        assert set(batch["label"].unique().tolist()) == wanted
    noise = GaussianNoise(prob=1, keys=keys)
    noisy = Chain(crop=crop, ops=(shuffle, noise), keys=keys, label_keys=("label",))
    assert batch_by(renderer, bind_store(noisy, own.store, batch_size=6), 0)["label"].dtype == torch.float32
