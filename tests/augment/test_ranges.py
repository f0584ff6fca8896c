"""A profile shows every operation of a program by name, those in one interpolation together."""

from __future__ import annotations

import torch
from monai.transforms import RandFlipd
from torch.profiler import ProfilerActivity, profile

from hasten.augment.chain import PerSample, stage_name
from tests.augment.stores import bind_store
from tests.augment.test_program import CHAINS, chain, equal, store

STAGES = ["Affine+Zoom+Flip", "GaussianNoise", "Affine+Rotate90", "GaussianNoise"]


def names(own: object) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        own(0)  # type: ignore[operator]
    return {event.key for event in seen.key_averages()}


def test_stages_are_itemised_where_a_profile_is_taken_and_give_the_same() -> None:
    program = bind_store(chain(3, *CHAINS["all"]), store(3), batch_size=4)
    assert [stage_name(stage) for stage in program.stages] == STAGES
    assert {*STAGES, "draw"} <= names(program)
    with profile(activities=[ProfilerActivity.CPU]):
        seen = program(1)
    assert equal(seen, program(1))
    spanned = bind_store(chain(3, *CHAINS["all"]), store(3), batch_size=4, spans=True)
    assert equal(program(1), spanned(1))


def test_transforms_that_run_sample_by_sample_are_itemised() -> None:
    kept = PerSample(transforms=(RandFlipd(["image"], prob=1.0, spatial_axis=0),))
    program = bind_store(chain(3, kept), store(3), batch_size=2)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        program(0)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["RandFlipd"] == 2


def test_a_program_under_a_profile_leaves_no_gradient_graph() -> None:
    program = bind_store(chain(3, *CHAINS["all"]), store(3), batch_size=2)
    with profile(activities=[ProfilerActivity.CPU]):
        batch = program(0)
    assert not any(value.requires_grad for value in batch.values())
    assert torch.is_grad_enabled()
