"""nnU-Net's cases as batches: without nnU-Net, by a data set that looks like its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hasten.augment.make_program import CaseSource, make_program
from hasten.nnunet.batches import Augmentation, NnunetCrop, batches_of, chain_of, read_cases
from tests.nnunet.datasets import DataSet

CPU = torch.device("cpu")
PATCH = (8, 8, 8)
USUAL = Augmentation(rotate_deg=30.0, mirror_axes=(0, 1, 2), in_plane=False)


def batches(
    *, augmentation: Augmentation | None = None, forced: int = 1, first: int = 0, dims: int = 3, **options: Any
) -> Iterator[dict[str, Any]]:
    patch = PATCH if dims == 3 else (1, 8, 8)
    store = read_cases(DataSet(), spatial_dims=dims)
    crop = NnunetCrop(size=patch, initial_size=patch, batch_size=2, forced=forced)
    program = make_program(
        chain_of(store, crop, augmentation), CaseSource(store=store), batch_size=2, seed=5, device=CPU
    )
    return batches_of(program, first=first, scales=options.pop("scales", None), **options)


def test_patches_hold_the_cases_voxels_and_classes() -> None:
    source = batches(forced=0)
    for _ in range(6):
        batch = next(source)
        assert batch["data"].shape == (2, 2, 8, 8, 8)
        assert batch["data"].dtype == torch.float32
        label, image = batch["target"].float(), batch["data"][:, :1]
        case = 10 * (image / 10).floor()
        # Where nnU-Net says -1 the background stands.
        assert torch.equal((image - case) * (label > 0), label)
        assert set(label.unique().tolist()) <= {0.0, 1.0, 2.0}


def test_the_last_patches_of_a_batch_hold_foreground() -> None:
    everywhere = [next(batches(forced=1, first=step)) for step in range(8)]
    assert all(bool((batch["target"][1] > 0).any()) for batch in everywhere)


def test_slices_of_a_2d_configuration() -> None:
    data, seg, _, _ = DataSet().load_case("b")
    turning = Augmentation(rotate_deg=180.0, mirror_axes=(0, 1), in_plane=False)
    batch = next(batches(dims=2, augmentation=turning, scales=[[1.0, 1.0], [0.5, 0.5]]))
    assert batch["data"].shape == (2, 2, 8, 8)
    assert [tuple(each.shape) for each in batch["target"]] == [(2, 1, 8, 8), (2, 1, 4, 4)]
    plain = [next(batches(dims=2, first=step)) for step in range(12)]
    slices = {tuple(each.flatten().tolist()) for batch in plain for each in batch["data"][:, 1]}
    whole = torch.from_numpy(data[1]).unfold(1, 8, 1).unfold(2, 8, 1).reshape(-1, 64)
    assert slices & {tuple(row.tolist()) for row in whole}
    assert seg.max() == 2


def test_targets_of_deep_supervision_and_regions() -> None:
    scales = [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]
    whole = next(batches(augmentation=USUAL))
    several = next(batches(augmentation=USUAL, scales=scales, regions=[[1, 2], [2]]))
    assert torch.equal(several["data"], whole["data"])
    assert [tuple(each.shape) for each in several["target"]] == [(2, 2, 8, 8, 8), (2, 2, 4, 4, 4), (2, 2, 2, 2, 2)]
    assert torch.equal(several["target"][0][:, :1], whole["target"] > 0)
    assert torch.equal(several["target"][0][:, 1:], whole["target"] == 2)


def test_channels_that_are_0_outside_of_the_body() -> None:
    """nnU-Net's normalisation within a mask: noise and brightness outside are taken back, on those channels only."""
    plain = [next(batches(augmentation=USUAL, first=step)) for step in range(20)]
    masked = [next(batches(augmentation=USUAL, first=step, masked=[1])) for step in range(20)]
    for one, other in zip(plain, masked, strict=True):
        assert torch.equal(one["target"], other["target"])
        assert torch.equal(one["data"][:, 0], other["data"][:, 0])
        changed = one["data"][:, 1] != other["data"][:, 1]
        assert not other["data"][:, 1][changed].any()
        assert not (changed & (one["target"][:, 0] > 0)).any()
    assert any(bool((one["data"] != other["data"]).any()) for one, other in zip(plain, masked, strict=True))


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return torch.equal(one["data"], other["data"]) and torch.equal(one["target"], other["target"])


def test_a_training_goes_on_with_the_batch_it_had_come_to() -> None:
    whole = batches(augmentation=USUAL)
    steps = [next(whole) for _ in range(4)]
    assert equal(next(batches(augmentation=USUAL, first=3)), steps[3])
    assert not equal(steps[0], steps[1])
