"""Batches on the fake device: every preset and every operation, drawn and rendered as on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from hasten.augment.chain import Chain
from hasten.augment.crop import SpatialCrop
from hasten.augment.presets import brats_chain, default_chain, nnunet_chain, pathology_chain, spleen_chain
from hasten.augment.program import Segment
from hasten.config.schema import SampleConfig, Triple
from tests.augment.stores import bind_store, random_store
from tests.contracts.test_operations import channels_of, crops, drawn_by_prob, fixed, segment
from tools.gpu_dry.fake_device import CUDA, NoHostCopies, expect, fake_cuda, on_cuda
from tools.gpu_dry.table import Check

TYPES = ("float16", "float32", "int16", "uint8")


def side_of(dims: int, side: int) -> Triple:
    return (1 if dims == 2 else side, side, side)


def preset_chains(dims: int, side: int) -> dict[str, tuple[Chain, int]]:
    """Every preset, and how many channels it is for."""
    patch = side_of(dims, side)
    crop = SpatialCrop(size=patch, pad=True)
    sample = SampleConfig(patch=patch)
    return {
        "default": (default_chain(sample, patch=patch, spatial_dims=dims), 2),
        "nnunet": (nnunet_chain(patch, spatial_dims=dims), 1),
        "nnunet, 3 channels": (nnunet_chain(patch, spatial_dims=dims, num_channels=3), 3),
        "spleen": (spleen_chain(patch, pad=True), 1),
        "brats": (brats_chain(patch, crop=crop, spatial_dims=dims), 4),
        "pathology": (pathology_chain(crop=crop, label=True), 3),
    }


def preset_segment(name: str, dims: int, side: int, dtype: str, *, batch_size: int = 4) -> Segment:
    chain, channels = preset_chains(dims, side)[name]
    shapes = [side_of(dims, side + 4), side_of(dims, side + 9)]
    store = random_store(shapes, num_channels=channels, dtype=dtype)
    return bind_store(chain, store, batch_size=batch_size)


def augmentation_checks() -> Iterator[Check]:
    for dims in (2, 3):
        for name in preset_chains(dims, 16):
            for dtype in TYPES:
                make = partial(preset_segment, name, dims, 16, dtype)
                yield Check("presets", f"{dims}-D {name} of {dtype}", partial(_check, make))
        for op in (*drawn_by_prob(dims), *fixed(dims), *crops(dims)):
            make = partial(segment, op, dims, channels_of(op))
            # A copy of the host's segment: what a test made is kept for the next one.
            yield Check("operations", f"{dims}-D {op!r}"[:90], partial(_check, make))


def _check(make: Callable[[], Segment]) -> None:
    """Two batches are drawn and rendered."""
    host = make()
    with fake_cuda():
        own = on_cuda(host)
        with NoHostCopies():
            batches = list(own.batches(0, 2))
    assert batches
    for batch in batches:
        for key, value in batch.items():
            expect(f"{key}, device", value.device, CUDA)
            expect(f"{key}, contiguous", value.is_contiguous(), True)
            expect(f"{key}, samples and axes", (len(value), value.ndim), (own.batch_size, 2 + own.store.spatial_dims))
        expect("image", batch["image"].dtype, torch.float32)
        expect("label", batch["label"].dtype, torch.uint8)
