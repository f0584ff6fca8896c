"""nnU-Net's cases as batches: without nnU-Net, by a data set that looks like its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hasten.nnunet.batches import Batches, make_batches, read_cases

CPU = torch.device("cpu")


class DataSet:
    """As nnU-Net's: `load_case` gives data (C, D, H, W), seg (1, D, H, W) with -1 outside, and voxels of classes."""

    identifiers = ("a", "b", "c")

    def load_case(self, name: str) -> tuple[np.ndarray, np.ndarray, None, dict[str, Any]]:
        number = self.identifiers.index(name)
        shape = (12 + number, 14, 16)
        rng = np.random.default_rng(number)
        seg = np.zeros((1, *shape), np.int16)
        seg[:, 2:5, 3:6, 4:7] = 1
        seg[:, 7:9, 8:10, 9:11] = 2
        data = np.stack([seg[0] + 10 * number, rng.random(shape)]).astype(np.float32)
        seg[:, 0] = -1
        locations = {value: np.argwhere(seg == value) for value in (1, 2)}
        return data, seg, None, {"class_locations": locations}


def batches(*, augmented: bool, forced: int = 1, first: int = 0, **options: Any) -> Batches:
    program = make_batches(
        read_cases(DataSet()), (8, 8, 8), batch_size=2, forced=forced, seed=5, device=CPU, augmented=augmented,
        mirror_axes=(0, 1, 2),
    )  # fmt: skip
    return Batches(program=program, first=first, scales=options.pop("scales", None), **options)


def test_patches_hold_the_cases_voxels_and_classes() -> None:
    source = batches(augmented=False)
    for _ in range(6):
        batch = next(source)
        assert batch["data"].shape == (2, 2, 8, 8, 8)
        assert batch["data"].dtype == torch.float32
        label, image = batch["target"].float(), batch["data"][:, :1]
        case = 10 * (image / 10).floor()
        # Where nnU-Net says -1 the background stands.
        assert torch.equal((image - case) * (label > 0), label)
        assert set(label.unique().tolist()) <= {0.0, 1.0, 2.0}


def test_forced_patches_hold_foreground() -> None:
    everywhere = [next(batches(augmented=False, forced=2, first=step)) for step in range(8)]
    assert all(bool((batch["target"] > 0).flatten(1).any(1).all()) for batch in everywhere)


def test_targets_of_deep_supervision_and_regions() -> None:
    scales = [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]]
    whole = next(batches(augmented=True))
    several = next(batches(augmented=True, scales=scales, regions=[[1, 2], [2]]))
    assert torch.equal(several["data"], whole["data"])
    assert [tuple(each.shape) for each in several["target"]] == [(2, 2, 8, 8, 8), (2, 2, 4, 4, 4), (2, 2, 2, 2, 2)]
    assert torch.equal(several["target"][0][:, :1], whole["target"] > 0)
    assert torch.equal(several["target"][0][:, 1:], whole["target"] == 2)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return torch.equal(one["data"], other["data"]) and torch.equal(one["target"], other["target"])


def test_a_training_goes_on_with_the_batch_it_had_come_to() -> None:
    whole = batches(augmented=True)
    steps = [next(whole) for _ in range(4)]
    assert equal(next(batches(augmented=True, first=3)), steps[3])
    assert not equal(steps[0], steps[1])


def test_regions_that_crops_are_centred_on_are_keys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DataSet.load_case

    def with_regions(self: DataSet, name: str) -> Any:
        data, seg, none, properties = plain(self, name)
        found = properties["class_locations"]
        return data, seg, none, {"class_locations": {(1, 2): np.concatenate([found[1], found[2]]), 2: found[2], 3: []}}

    monkeypatch.setattr(DataSet, "load_case", with_regions)
    sets = read_cases(DataSet()).sets
    assert sets is not None
    assert sets.num.shape == (3, 3)
    assert sorted(sets.num[0].tolist()) == [0, 8, 35]
