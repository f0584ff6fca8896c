"""The kernels that fuse nnU-Net's chain, in Triton's interpreter, against torch's operations one by one.

The interpreter is chosen when Triton is imported: `TRITON_INTERPRET=1 pytest tests/augment/test_fused.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.chain import Chain
from hasten.augment.contrast import Contrast, Gamma
from hasten.augment.fused import KINDS, fused_places, render_fused
from hasten.augment.intensity import Brightness
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.make_program import CaseSource, make_segment
from hasten.augment.noise import GaussianNoise
from hasten.augment.presets import default_chain, nnunet_chain
from hasten.augment.program import Segment
from hasten.augment.render import render
from hasten.augment.smooth import Blur, GaussianSmooth
from hasten.config.schema import SampleConfig, Triple
from tests.augment.stores import random_store

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
PATCH = (6, 9, 10)


def segment_of(
    chain: Chain, patch: Triple, dtype: torch.dtype = torch.float16, *, channels: int = 1, dims: int = 3
) -> Segment:
    depth, height, width = patch
    store = random_store([patch, (depth, height + 3, max(1, width - 2))], num_channels=channels)
    values = {**store.values, "image": (store.values["image"] * 20 - 5 * dtype.is_signed).to(dtype)}
    return make_segment(chain, CaseSource(store=replace(store, values=values, spatial_dims=dims)), batch_size=5)


def with_prob(chain: Chain, **probs: float) -> Chain:
    """The operations on values drawn with the probability under their name, or as they are."""
    return replace(
        chain,
        ops=tuple(replace(op, prob=probs[type(op).__name__]) if type(op).__name__ in probs else op for op in chain.ops),
    )


def both(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A batch by torch's operations, and by the fused kernels from the same numbers."""
    with torch.no_grad():
        draws = segment.drawn(torch.arange(segment.batch_size))
        arguments: tuple[Any, ...] = (segment.stages, segment.stored(), draws, segment.store.spatial_dims)
        wanted = render(*arguments)
        monkeypatch.setattr("hasten.augment.fused.triton_runs", lambda tensor: True)
        return wanted, render_fused(*arguments)


def compare(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, found = both(segment, monkeypatch)
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype
        assert found[key].is_contiguous()
    assert torch.equal(found["label"], wanted["label"])
    torch.testing.assert_close(found["image"], wanted["image"], rtol=1e-4, atol=1e-4)


ALL = {kind.__name__: 0.6 for kind in KINDS}


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16, torch.int16, torch.uint8])
def test_every_operation_drawn_by_most_samples(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(segment_of(with_prob(nnunet_chain(PATCH), **ALL), PATCH, dtype), monkeypatch)


@interpreted
@pytest.mark.parametrize("patch", [(1, 1, 1), (1, 5, 4), (17, 3, 2), (3, 5, 33), (2, 20, 31)])
@pytest.mark.parametrize("channels", [1, 4])
def test_shapes(patch: Triple, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = with_prob(nnunet_chain(patch, num_channels=channels), **ALL)
    compare(segment_of(chain, patch, channels=channels), monkeypatch)


@interpreted
@pytest.mark.parametrize("channels", [1, 4])
def test_two_dimensions(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = (1, 23, 31)
    chain = with_prob(nnunet_chain(patch, num_channels=channels, spatial_dims=2), **ALL)
    compare(segment_of(chain, patch, channels=channels, dims=2), monkeypatch)


@interpreted
@pytest.mark.parametrize("name", sorted({kind.__name__ for kind in KINDS}))
def test_one_operation_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {each: float(each == name) for each in ALL}
    compare(segment_of(with_prob(nnunet_chain(PATCH), **drawn), PATCH), monkeypatch)


OWN: dict[str, tuple[Any, ...]] = {
    "no statistics kept": (Contrast(prob=0.7, preserve_range=False), Gamma(prob=0.7, p_retain_stats=0.0)),
    "some kept": (Gamma(prob=0.8, p_retain_stats=0.5, p_invert_image=0.5), Gamma(prob=0.8, p_retain_stats=0.5)),
    "some channels": (
        Blur(prob=1.0, p_per_channel=0.5), Brightness(prob=1.0, p_per_channel=0.5),
        Contrast(prob=1.0, p_per_channel=0.5), Gamma(prob=1.0, p_per_channel=0.5),
    ),
    "negative factors": (
        Brightness(prob=1.0, around_one=False, multiplier_range=(-2.0, -1.0)),
        Contrast(prob=1.0, around_one=False, contrast_range=(-2.0, -1.0)), Gamma(prob=0.5),
    ),
    "at corners": (SimulateLowResolution(prob=1.0, half_pixel=False, zoom_range=(0.1, 1.6)),),
    "contrast before low resolution": (Contrast(prob=1.0), SimulateLowResolution(prob=0.5)),
    "a shift of noise": (GaussianNoise(prob=0.5, mean=3.0, std=(1.0, 2.0)), Blur(prob=0.5, blur_sigma=(0.0, 1.4))),
    "others after": (GaussianNoise(prob=1.0), Gamma(prob=0.5), GaussianNoise(prob=0.5), Brightness(prob=1.0)),
}  # fmt: skip


@interpreted
@pytest.mark.parametrize("name", OWN)
def test_other_chains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = nnunet_chain(PATCH)
    chain = replace(chain, ops=(*chain.ops[:2], *OWN[name]))
    compare(segment_of(chain, PATCH, channels=3), monkeypatch)


@interpreted
def test_a_label_that_is_read_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(segment_of(with_prob(nnunet_chain(PATCH, label_mode="majority"), **ALL), PATCH), monkeypatch)


@interpreted
def test_a_crop_without_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = nnunet_chain(PATCH)
    compare(segment_of(with_prob(replace(chain, ops=chain.ops[2:]), **ALL), PATCH, channels=2), monkeypatch)


def test_what_is_not_nnunets_is_rendered_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = default_chain(SampleConfig(patch=PATCH), patch=PATCH, spatial_dims=3)
    segment = segment_of(chain, PATCH)
    assert fused_places(segment.stages) == []
    wanted, found = both(segment, monkeypatch)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_which_operations_are_fused() -> None:
    chain = nnunet_chain(PATCH)
    assert fused_places(segment_of(chain, PATCH).stages) == [1, 2, 3, 4, 5, 6, 7]
    short = replace(chain, ops=(*chain.ops[:2], Brightness(), GaussianSmooth(), Gamma()))
    assert fused_places(segment_of(short, PATCH).stages) == [None, None, 1, None, None, None, None]
    wide = replace(chain, ops=(*chain.ops[:2], GaussianNoise(), Blur(blur_sigma=(1.0, 5.0))))
    assert fused_places(segment_of(wide, PATCH).stages) == [1, None, None, None, None, None, None]
