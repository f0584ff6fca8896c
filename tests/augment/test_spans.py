"""A profile shows every operation by name, those in one interpolation together."""

from __future__ import annotations

import torch
from monai.transforms import RandFlipd
from torch.profiler import ProfilerActivity, profile

from hasten.augment.program import make_chain_program
from hasten.augment.spans import Range, name_of
from tests.augment.test_program import CHAINS, chain, equal, store


def names(own: object) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        own(0)  # type: ignore[operator]
    return {event.key for event in seen.key_averages()}


def test_stages_are_itemised_where_asked_for() -> None:
    plain = make_chain_program(chain(3, *CHAINS["all"]), store(3), batch_size=4)
    spanned = make_chain_program(chain(3, *CHAINS["all"]), store(3), batch_size=4, spans=True)
    assert [name_of(stage) for stage in plain.stages] == [
        "Rotate+Zoom+Flip",
        "GaussianNoise",
        "Affine+Rotate90",
        "GaussianNoise",
    ]
    assert {name_of(stage) for stage in spanned.stages} <= names(spanned)
    assert not {"GaussianNoise", "Rotate+Zoom+Flip"} & names(plain)
    assert equal(plain(1), spanned(1))


def test_a_wrapped_transform_is_still_itself() -> None:
    wrapped = Range("mirroring")(RandFlipd(["image"], prob=1.0, spatial_axis=0))
    assert isinstance(wrapped, RandFlipd)
    assert wrapped.prob == 1.0  # type: ignore[attr-defined]
    image = torch.arange(8.0).view(1, 4, 2)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        found = wrapped({"image": image})
    assert torch.equal(torch.as_tensor(found["image"]), image.flip(1))
    assert "mirroring" in {event.key for event in seen.key_averages()}


def test_a_range_is_a_context_too() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen, Range("part"):
        torch.ones(3).sum()
    assert "part" in {event.key for event in seen.key_averages()}
