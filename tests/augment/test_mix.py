"""MixUp and CutMix are MONAI's, drawn by sample and grouped by batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import CutMix as MonaiCutMix
from monai.transforms import MixUp as MonaiMixUp
from scipy import stats
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.augment.chain import Batch, BatchOp, Chain
from hasten.augment.mix import CutMix, MixUp
from hasten.augment.op import Drawn
from hasten.augment.store import store_of_items
from hasten.sample.random import sample_key
from tests.augment.stores import bind_store

SIZES = [(9, 14), (7, 10, 6)]
OPS: list[Any] = [MixUp(keys=("image", "label"), label_keys=("label",), num_classes=4), CutMix()]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def batches(count: int, size: tuple[int, ...], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 4, (count, 1, *size), generator=draw, dtype=torch.uint8)
    return {"image": torch.randn(count, 2, *size, generator=draw), "label": label}


def monai_drew(transform: Any, count: int, size: tuple[int, ...]) -> Drawn:
    """The numbers of a MONAI transform, as `draw_batch` gives them."""
    weight, partner, corner = transform._params
    results = {"weight": weight, "order": torch.argsort(torch.from_numpy(np.asarray(partner)))}
    if corner:
        results["corner"] = torch.cat(corner)[None].expand(count, len(size))
    return results


def quietly(call: Callable[[Tensor], Any], data: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI indexes with a list
        return torch.as_tensor(call(data))


@each_size
@pytest.mark.parametrize("seed", range(5))
def test_mixup_is_monais(size: tuple[int, ...], seed: int) -> None:
    monai = MonaiMixUp(6, alpha=0.6)
    monai.set_random_state(seed)
    batch = batches(6, size, seed)
    monai.randomize(batch["image"])
    result = OPS[0].apply_batch(batch, monai_drew(monai, 6, size))
    shares = torch.nn.functional.one_hot(batch["label"][:, 0].long(), 4).movedim(-1, 1).float()
    assert torch.allclose(result["image"], monai.apply(batch["image"]), rtol=1e-4, atol=1e-6)
    assert torch.allclose(result["label"], monai.apply(shares), rtol=1e-4, atol=1e-6)
    assert torch.allclose(result["label"].sum(1), torch.ones(6, *size), atol=1e-6)


@each_size
@pytest.mark.parametrize("seed", range(12))
def test_cutmix_is_monais(size: tuple[int, ...], seed: int) -> None:
    monai = MonaiCutMix(6, alpha=0.6)
    monai.set_random_state(seed)
    batch = batches(6, size, seed)
    monai.randomize(batch["image"])
    result = CutMix().apply_batch(batch, monai_drew(monai, 6, size))
    assert torch.equal(result["image"], quietly(monai.apply, batch["image"]))
    assert result["label"].dtype == torch.uint8
    assert torch.equal(result["label"], quietly(monai.apply, batch["label"]))


@each_size
def test_cutmix_boxes_lie_where_each_sample_says(size: tuple[int, ...]) -> None:
    batch = {"image": torch.arange(4.0).view(4, 1, *[1] * len(size)).expand(4, 1, *size)}
    drawn = CutMix().draw_batch(keys(4), (1, *size))
    drawn["order"] = torch.tensor([1, 2, 3, 0])
    result = CutMix(keys=("image",)).apply_batch(batch, drawn)["image"]
    partner = torch.argsort(drawn["order"])
    assert len({tuple(corner) for corner in drawn["corner"].tolist()}) > 1
    for row in range(4):
        wanted = torch.full(size, float(row))
        share = float(np.sqrt(1 - drawn["weight"][row].item()))
        box = tuple(
            slice(first, min(int(np.ceil(first + side * share)), side))
            for first, side in zip(drawn["corner"][row].tolist(), size, strict=True)
        )
        wanted[box] = float(partner[row])
        assert torch.equal(result[row, 0], wanted)


@each_op
def test_is_a_batch_op_and_keeps_its_inputs(op: Any) -> None:
    assert isinstance(op, BatchOp)
    batch = {**batches(5, (7, 10, 6)), "other": torch.rand(5, 1, 3, 3, 3)}
    before = {name: value.clone() for name, value in batch.items()}
    drawn = op.draw_batch(keys(5), (2, 7, 10, 6))
    result = op.apply_batch(batch, drawn)
    assert result.keys() == batch.keys()
    assert result["other"] is batch["other"]
    assert not torch.equal(result["image"], batch["image"])
    assert all(torch.equal(value, before[name]) for name, value in batch.items())
    assert all(torch.equal(value, result[name]) for name, value in op.apply_batch(batch, drawn).items())


@each_op
def test_numbers_are_those_of_the_samples_one_by_one(op: Any) -> None:
    drawn = op.draw_batch(keys(7), (2, 7, 10, 6))
    for at in range(7):
        alone = op.draw_batch(keys(7)[at : at + 1], (2, 7, 10, 6))
        assert alone.keys() == drawn.keys()
        assert all(torch.equal(value, drawn[name][at : at + 1]) for name, value in alone.items())
    other = op.draw_batch(keys(7, 1), (2, 7, 10, 6))
    assert all(not torch.equal(value, other[name]) for name, value in drawn.items())


@each_op
def test_a_batch_is_its_pairs_one_by_one(op: Any) -> None:
    batch, drawn = batches(6, (9, 14)), op.draw_batch(keys(6), (2, 9, 14))
    result, partner = op.apply_batch(batch, drawn), torch.argsort(drawn["order"])
    for row in range(6):
        pair = {name: value[[row, int(partner[row])]] for name, value in batch.items()}
        own = {name: value[[row, row]] for name, value in drawn.items()} | {"order": torch.tensor([1, 0])}
        alone = op.apply_batch(pair, own)
        assert all(torch.allclose(alone[name][0], value[row], atol=1e-6) for name, value in result.items())


@each_op
def test_prob_leaves_samples_bit_for_bit_as_they_are(op: Any) -> None:
    own = replace(op, prob=0.4)
    drawn = own.draw_batch(keys(2000), (2, 9, 14))
    left = drawn["weight"] == 1
    assert abs(float(left.float().mean()) - 0.6) < 0.05
    assert torch.equal(drawn["weight"][~left], op.draw_batch(keys(2000), (2, 9, 14))["weight"][~left])
    batch, few = batches(40, (9, 14)), {name: value[:40] for name, value in drawn.items()}
    batch["image"][~left[:40]] = float("nan")
    batch["image"][0, 0, 0] = -0.0
    result = own.apply_batch(batch, few)
    assert torch.equal(result["image"][left[:40]].view(torch.int32), batch["image"][left[:40]].view(torch.int32))
    if isinstance(op, CutMix):
        assert torch.equal(result["label"][left[:40]], batch["label"][left[:40]])
    else:
        assert torch.equal(result["label"][left[:40]].argmax(1), batch["label"][left[:40], 0].long())


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("make", [MixUp, CutMix])
def test_weights_are_of_the_beta_distribution(make: Any, alpha: float) -> None:
    drawn = make(alpha=alpha).draw_batch(keys(2000), (2, 9, 14))
    weight = drawn["weight"].double().numpy()
    assert np.isfinite(weight).all()
    half = stats.beta(alpha, alpha)
    assert stats.kstest(weight[weight < 0.5], lambda x: 2 * half.cdf(x)).pvalue > 1e-3
    assert stats.binomtest(int((weight < 0.5).sum()), 2000).pvalue > 1e-3
    if alpha >= 0.5:  # below, float32 is too coarse close to 1
        assert stats.kstest(1 - weight[weight > 0.5], lambda x: 2 * half.cdf(x)).pvalue > 1e-3


def test_very_small_alphas_give_no_nan() -> None:
    weight = MixUp(alpha=1e-3).draw_batch(keys(2000), (2, 9, 14))["weight"]
    assert torch.isfinite(weight).all()
    assert weight.min() >= 0
    assert weight.max() <= 1


@each_op
@each_size
def test_nothing_is_read_on_the_host(op: Any, size: tuple[int, ...]) -> None:
    with FakeTensorMode():
        batch = {"image": torch.empty(3, 2, *size), "label": torch.empty(3, 1, *size, dtype=torch.uint8)}
        result = op.apply_batch(batch, op.draw_batch(torch.empty(3, 2, dtype=torch.int64), (2, *size)))
        assert result["image"].shape == (3, 2, *size)
        assert result["label"].shape == (3, 4 if isinstance(op, MixUp) else 1, *size)


def test_a_chain_mixes_within_its_batches() -> None:
    items = [
        (str(number), {"image": np.full((1, 6, 5), number, np.float32), "label": np.full((1, 6, 5), number, np.uint8)})
        for number in range(4)
    ]
    chain = Chain(crop=None, ops=(CutMix(prob=0.7),), keys=("image", "label"), label_keys=("label",))
    own = bind_store(chain, store_of_items(items, ["image", "label"]), batch_size=4)
    plain = bind_store(replace(chain, ops=()), store_of_items(items, ["image", "label"]), batch_size=4)
    mixed = 0
    for step, batch in enumerate(own.batches(0, 20)):
        assert torch.equal(batch["image"].long(), batch["label"].long())
        assert set(batch["image"].unique().tolist()) <= {0.0, 1.0, 2.0, 3.0}
        mixed += int((batch["image"] != plain(step)["image"]).any())
        if step == 13:
            assert torch.equal(own(13)["image"], batch["image"])
    assert mixed > 10


def test_shares_are_taken_as_they_are() -> None:
    batch = batches(3, (9, 14))
    shares = torch.nn.functional.one_hot(batch["label"][:, 0].long(), 4).movedim(-1, 1)
    drawn = OPS[0].draw_batch(keys(3), (2, 9, 14))
    result = OPS[0].apply_batch({**batch, "label": shares}, drawn)["label"]
    assert torch.equal(result, OPS[0].apply_batch(batch, drawn)["label"])


def test_batches_that_do_not_fit_are_refused() -> None:
    batch = batches(3, (9, 14))
    drawn = CutMix().draw_batch(keys(3), (2, 9, 14))
    with pytest.raises(ValueError, match=r'MixUp: "label" holds uint8.*label_keys'):
        MixUp(keys=("image", "label")).apply_batch(batch, drawn)
    with pytest.raises(ValueError, match=r'MixUp: "label" has 3 channels; num_classes=4'):
        OPS[0].apply_batch({**batch, "label": batch["label"].expand(3, 3, 9, 14)}, drawn)
    with pytest.raises(ValueError, match=r'CutMix: "label" has \(9, 7\) voxels'):
        CutMix().apply_batch({**batch, "label": batch["label"][..., :7]}, drawn)
