"""Deterministic transforms after random ones: what MONAI makes of a sample, made of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    AsDiscreted,
    CastToTyped,
    ConcatItemsd,
    ConvertToMultiChannelBasedOnBratsClassesd,
    CopyItemsd,
    DeleteItemsd,
    EnsureTyped,
    Identityd,
    LabelToMaskd,
    RandFlipd,
    RandGaussianNoised,
    RepeatChanneld,
    SelectItemsd,
    ToDeviced,
    ToNumpyd,
    ToTensord,
)

from tests.augment.lowering import KEYS, batch_of, both, item, lowered, why

FLIP = RandFlipd(KEYS, prob=1, spatial_axis=0)

CHAINS: list[Any] = [
    CastToTyped(KEYS, dtype=(np.float32, np.uint8)),
    CastToTyped(KEYS, dtype=(torch.float16, torch.int64)),
    CastToTyped("image", dtype=np.float32),
    EnsureTyped(KEYS),
    EnsureTyped(KEYS, dtype=torch.float32),
    EnsureTyped("label", dtype=torch.uint8),
    ToTensord(KEYS, dtype=torch.float32),
    ToTensord(KEYS),
    Identityd(KEYS),
    AsDiscreted("label", to_onehot=3),
    AsDiscreted(KEYS, argmax=(True, False), to_onehot=(None, 3)),
    AsDiscreted("image", threshold=1.0),
    AsDiscreted("image", rounding="torchrounding"),
    ConvertToMultiChannelBasedOnBratsClassesd("label"),
    LabelToMaskd("label", select_labels=[1, 2]),
    RepeatChanneld("image", repeats=2),
]


@pytest.mark.parametrize("transform", CHAINS, ids=lambda each: type(each).__name__)
def test_it_is_monais(transform: Any) -> None:
    result, wanted = both(FLIP, transform)
    for key in KEYS:
        assert result[key].shape == wanted[key].shape
        assert torch.equal(result[key].float(), wanted[key].float())
        assert result[key].dtype == wanted[key].dtype


def test_nothing_is_done_where_nothing_changes() -> None:
    chain = [FLIP, EnsureTyped(KEYS), ToTensord(KEYS), ToNumpyd("image"), ToDeviced(KEYS, "cpu"), Identityd(KEYS)]
    program = lowered(*chain, CastToTyped("image", dtype=np.float32), DeleteItemsd("id"), SelectItemsd(KEYS))
    assert len(program.plan.ops) == 1
    assert "batches lie on the device of the program" in program.explain()


def test_entries_are_chosen_and_left_out() -> None:
    batch = batch_of(item(), item(seed=1))
    assert set(lowered(FLIP, SelectItemsd("image"))(batch, seed=0)) == {"image"}
    assert set(lowered(FLIP, DeleteItemsd("label"))(batch, seed=0)) == {"image"}
    assert set(lowered(FLIP, DeleteItemsd("^la", use_re=True))(batch, seed=0)) == {"image"}
    assert set(lowered(FLIP, DeleteItemsd("la"))(batch, seed=0)) == set(KEYS)


def test_what_the_chain_makes_can_be_kept_and_converted() -> None:
    chain = [FLIP, ConcatItemsd(KEYS, name="both"), EnsureTyped("both", dtype=torch.float16), SelectItemsd("both")]
    result = lowered(*chain)(batch_of(item(), item(seed=1)), seed=0)
    assert set(result) == {"both"}
    assert result["both"].shape == (2, 3, 12, 16, 14)
    assert result["both"].dtype == torch.float16
    assert 'works on "both", which the chain makes' in why(*chain[:2], RandGaussianNoised("both"))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (ConcatItemsd(KEYS, name="both", dim=1), "joins along axis 1"),
        (AsDiscreted("image", argmax=True, dim=1), "another axis than the channels"),
        (CopyItemsd("image", names="other"), "has no counterpart"),
        (EnsureTyped(KEYS, allow_missing_keys=True), "allow_missing_keys"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai(transform: Any, message: str) -> None:
    assert message in why(FLIP, transform)


def test_arguments_that_can_not_be_are_refused() -> None:
    with pytest.raises(ValueError, match="AsDiscreted can't be lowered: as_discrete: to_onehot=0"):
        lowered(FLIP, AsDiscreted("label", to_onehot=0))
