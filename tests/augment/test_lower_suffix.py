"""Conversions and choices after random transforms: what MONAI makes of a sample, made of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    AsDiscreted,
    CastToTyped,
    ConcatItemsd,
    CopyItemsd,
    DeleteItemsd,
    EnsureTyped,
    Identityd,
    MixUpd,
    RandFlipd,
    RandGaussianNoised,
    SelectItemsd,
    ToDeviced,
    ToNumpyd,
    ToTensord,
)

from tests.augment.lowering import KEYS, batch_of, both, item, lowered, why

FLIP = RandFlipd(KEYS, prob=1, spatial_axis=0)


@pytest.mark.parametrize(
    "transform",
    [
        CastToTyped(KEYS, dtype=(np.float32, np.uint8)),
        CastToTyped(KEYS, dtype=(torch.float16, torch.int64)),
        EnsureTyped(KEYS),
        EnsureTyped("label", dtype=torch.uint8),
        ToTensord(KEYS, dtype=torch.float32),
        Identityd(KEYS),
    ],
    ids=lambda each: type(each).__name__,
)
def test_it_is_monais(transform: Any) -> None:
    result, wanted = both(FLIP, transform)
    for key in KEYS:
        assert torch.equal(result[key], wanted[key])
        assert result[key].dtype == wanted[key].dtype


def test_nothing_is_done_where_nothing_changes() -> None:
    chain = [FLIP, EnsureTyped(KEYS), ToTensord(KEYS), ToNumpyd("image"), ToDeviced(KEYS, "cpu"), Identityd(KEYS)]
    program = lowered(*chain, CastToTyped("image", dtype=np.float32), DeleteItemsd("id"), SelectItemsd(KEYS))
    assert len(program.plan.ops) == 1


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (SelectItemsd("image"), {"image"}),
        (DeleteItemsd("label"), {"image"}),
        (DeleteItemsd("^la", use_re=True), {"image"}),
        (DeleteItemsd("la"), set(KEYS)),
    ],
)
def test_entries_are_chosen_and_left_out(last: Any, kept: set[str]) -> None:
    assert set(lowered(FLIP, last)(batch_of(item(), item(seed=1)), seed=0)) == kept


def test_what_the_chain_makes_can_be_kept_and_converted() -> None:
    chain = [FLIP, ConcatItemsd(KEYS, name="both"), EnsureTyped("both", dtype=torch.float16), SelectItemsd("both")]
    result = lowered(*chain)(batch_of(item(), item(seed=1)), seed=0)
    assert set(result) == {"both"}
    assert result["both"].shape == (2, 3, 12, 16, 14)
    assert result["both"].dtype == torch.float16


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([ConcatItemsd(KEYS, name="both"), RandGaussianNoised("both")], 'works on "both", which the chain makes'),
        ([ConcatItemsd(KEYS, name="both", dim=1)], "joins along axis 1"),
        ([AsDiscreted("image", argmax=True)], "has no counterpart"),
        ([CopyItemsd("image", names="other")], "has no counterpart"),
        ([EnsureTyped(KEYS, allow_missing_keys=True)], "allow_missing_keys"),
    ],
)
def test_what_is_left_to_monai(chain: list[Any], message: str) -> None:
    assert message in why(FLIP, *chain)


def test_what_mixes_samples_is_not_run_on_one() -> None:
    with pytest.raises(ValueError, match="MixUpd: mixes the samples of a batch"):
        lowered(FLIP, MixUpd(KEYS, batch_size=2))
