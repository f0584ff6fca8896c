"""The steps that end a chain are MONAI's, on batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    AsDiscrete,
    AsDiscreted,
    CastToType,
    ConcatItemsd,
    ConvertToMultiChannelBasedOnBratsClasses,
    DeleteItemsd,
    EnsureType,
    LabelToMask,
    RepeatChannel,
    SelectItemsd,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.augment.chain import Batch, Chain, Fixed
from hasten.augment.store import store_of_items
from hasten.augment.suffix import (
    as_discrete,
    cast,
    concat,
    convert_to_brats_classes,
    delete,
    label_to_mask,
    repeat_channel,
    select,
    to_channels,
)
from tests.augment.stores import bind_store

SIZES = [(9, 14), (7, 10, 6)]
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def batches(size: tuple[int, ...], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return {
        "image": torch.randn(3, 2, *size, generator=draw) * 3,
        "label": torch.randint(0, 5, (3, 1, *size), generator=draw, dtype=torch.uint8),
        "scores": torch.randn(3, 4, *size, generator=draw),
        "classes": torch.randint(0, 5, (3, 1, *size), generator=draw).float(),
    }


def batches_of(size: tuple[int, ...]) -> Batch:
    """Shapes and types of `batches`."""
    floats = {name: torch.empty(3, channels, *size) for name, channels in (("image", 2), ("scores", 4), ("classes", 1))}
    return {**floats, "label": torch.empty(3, 1, *size, dtype=torch.uint8)}


def one_by_one(transform: Callable[[Any], Any], value: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(transform(sample)).as_subclass(Tensor) for sample in value])


CASES: list[tuple[str, Fixed, Callable[[Any], Any]]] = [
    ("scores", as_discrete("scores", argmax=True), AsDiscrete(argmax=True)),
    ("scores", as_discrete("scores", argmax=True, to_onehot=4), AsDiscrete(argmax=True, to_onehot=4)),
    ("scores", as_discrete("scores", threshold=0.3), AsDiscrete(threshold=0.3)),
    ("scores", as_discrete("scores", rounding="torchrounding"), AsDiscrete(rounding="torchrounding")),
    (
        "scores",
        as_discrete("scores", argmax=True, to_onehot=4, threshold=0.5, dtype=torch.uint8),
        AsDiscrete(argmax=True, to_onehot=4, threshold=0.5, dtype=torch.uint8),
    ),
    (
        "scores",
        as_discrete("scores", argmax=True, rounding="torchrounding"),
        AsDiscrete(argmax=True, rounding="torchrounding"),
    ),
    ("label", as_discrete("label", to_onehot=5), AsDiscrete(to_onehot=5)),
    ("classes", as_discrete("classes", to_onehot=6, dtype="int64"), AsDiscrete(to_onehot=6, dtype=torch.int64)),
    ("label", label_to_mask("label", (1, 3)), LabelToMask((1, 3))),
    ("classes", label_to_mask("classes", 2), LabelToMask(2)),
    ("label", label_to_mask("label", (1, 3), merge_channels=True), LabelToMask((1, 3), merge_channels=True)),
    ("scores", label_to_mask("scores", (2, 0)), LabelToMask((2, 0))),
    ("scores", label_to_mask("scores", (2, 0), merge_channels=True), LabelToMask((2, 0), merge_channels=True)),
    ("image", repeat_channel("image", 3), RepeatChannel(3)),
    ("label", cast("label", torch.float32), CastToType(torch.float32)),
    ("classes", cast("classes", np.uint8), CastToType(np.uint8)),
    ("image", cast("image", "int64"), EnsureType(dtype=torch.int64)),
    ("image", cast("image", np.dtype("float16")), EnsureType(dtype=torch.float16)),
]
IDS = [f"{number}-{fixed.name}" for number, (_, fixed, _) in enumerate(CASES)]


@each_size
@pytest.mark.parametrize(("key", "fixed", "monai"), CASES, ids=IDS)
def test_is_monais_of_each_sample(key: str, fixed: Fixed, monai: Any, size: tuple[int, ...]) -> None:
    batch = batches(size)
    before = {name: value.clone() for name, value in batch.items()}
    result = fixed.apply(batch)
    wanted = one_by_one(monai, batch[key])
    assert result[key].dtype == wanted.dtype
    assert torch.equal(result[key], wanted)
    assert result.keys() == batch.keys()
    assert all(result[name] is batch[name] for name in batch if name != key)
    assert all(torch.equal(value, before[name]) for name, value in batch.items())


@pytest.mark.parametrize("et_label", [4, 3])
def test_brats_classes_are_monais(et_label: int) -> None:
    batch = batches((7, 10, 6))
    monai = ConvertToMultiChannelBasedOnBratsClasses(et_label)
    for key in ("label", "classes"):
        result = convert_to_brats_classes(key, et_label).apply(batch)[key]
        assert result.dtype == torch.bool
        assert torch.equal(result, one_by_one(monai, batch[key]))


def test_brats_classes_in_2d_have_no_axis_too_many() -> None:
    batch = batches((9, 14))
    result = convert_to_brats_classes("label").apply(batch)["label"]
    assert result.shape == (3, 3, 9, 14)
    assert torch.equal(result, one_by_one(ConvertToMultiChannelBasedOnBratsClasses(), batch["label"])[:, :, 0])


@each_size
def test_groups_of_classes_become_channels(size: tuple[int, ...]) -> None:
    label = batches(size)["label"]
    result = to_channels("label", [(1, 2, 3), [2], (0, 4)]).apply({"label": label})["label"]
    wanted = [torch.isin(label, torch.tensor(group)) for group in ([1, 2, 3], [2], [0, 4])]
    assert result.dtype == torch.bool
    assert torch.equal(result, torch.cat(wanted, dim=1))


def test_several_keys_are_changed_alike() -> None:
    batch = batches((7, 10, 6))
    result = as_discrete(["label", "classes"], to_onehot=5).apply(batch)
    monai = AsDiscreted(["label", "classes"], to_onehot=5)
    samples = [monai({name: value[row] for name, value in batch.items()}) for row in range(3)]
    for key in ("label", "classes"):
        assert torch.equal(result[key], torch.stack([sample[key] for sample in samples]))


def test_classes_out_of_range_have_no_channel() -> None:
    result = as_discrete("label", to_onehot=3).apply({"label": torch.tensor([[[[0, 2, 255]]]], dtype=torch.uint8)})
    assert result["label"][0, :, 0].T.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("fixed", "monai"),
    [
        (concat(["image", "scores"], "both"), ConcatItemsd(["image", "scores"], "both")),
        (concat(["classes", "image"], "image"), ConcatItemsd(["classes", "image"], "image")),
        (select(["label", "image"]), SelectItemsd(["label", "image"])),
        (select("image"), SelectItemsd("image")),
        (delete(["scores", "absent"]), DeleteItemsd(["scores", "absent"])),
    ],
    ids=lambda each: type(each).__name__,
)
def test_entries_are_monais(fixed: Fixed, monai: Any) -> None:
    batch = batches((7, 10, 6))
    result = fixed.apply(batch)
    samples = [monai({name: value[row] for name, value in batch.items()}) for row in range(3)]
    assert list(result) == list(samples[0])
    for name, value in result.items():
        assert torch.equal(value, torch.stack([sample[name] for sample in samples]))


ALL = [fixed for _, fixed, _ in CASES] + [
    convert_to_brats_classes("label"), to_channels("label", [(1,), (2, 3)]), concat(["image", "scores"], "both"),
    select("image"), delete("scores"),
]  # fmt: skip


@each_size
@pytest.mark.parametrize("fixed", ALL, ids=lambda fixed: fixed.name)
def test_nothing_is_read_on_the_host(fixed: Fixed, size: tuple[int, ...]) -> None:
    shapes = {name: value.shape for name, value in fixed.apply(batches(size)).items()}
    with FakeTensorMode():
        batch = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in batches_of(size).items()}
        assert {name: value.shape for name, value in fixed.apply(batch).items()} == shapes


@pytest.mark.parametrize("fixed", ALL, ids=lambda fixed: fixed.name)
def test_can_be_sent_to_a_process(fixed: Fixed) -> None:
    batch = batches((9, 14))
    result, again = fixed.apply(batch), pickle.loads(pickle.dumps(fixed)).apply(batch)
    assert all(torch.equal(value, again[name]) for name, value in result.items())


def test_ends_a_chain() -> None:
    batch = batches((9, 14))
    items = [(str(row), {name: batch[name][row] for name in ("image", "label")}) for row in range(3)]
    ops = (convert_to_brats_classes("label"), cast("label", "float32"), delete("image"))
    chain = Chain(crop=None, ops=ops, keys=("image", "label"), label_keys=("label",))
    result = bind_store(chain, store_of_items(items, ["image", "label"]), batch_size=3)(0)
    assert list(result) == ["label"]
    assert result["label"].dtype == torch.float32
    wanted = convert_to_brats_classes("label").apply(batch)["label"].float()
    assert sorted(result["label"].sum((1, 2, 3)).tolist()) == sorted(wanted.sum((1, 2, 3)).tolist())


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        (as_discrete("scores", to_onehot=4), 'as_discrete: "scores" has 4 channels'),
        (convert_to_brats_classes("image"), 'convert_to_brats_classes: "image" has 2 channels'),
        (label_to_mask("scores", 4), 'label_to_mask: "scores" has 4 channels.*channel 4'),
        (cast("absent", "uint8"), 'cast: keys: "absent"'),
        (select(["image", "absent"]), 'select: keys: "absent"'),
        (concat(["image", "absent"], "both"), 'concat: keys: "absent"'),
    ],
    ids=lambda each: each.name if isinstance(each, Fixed) else "",
)
def test_batches_that_do_not_fit_are_refused(fixed: Fixed, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fixed.apply(batches((9, 14)))


def test_entries_of_other_sizes_are_not_joined() -> None:
    batch = {**batches((9, 14)), "small": torch.empty(3, 1, 9, 7)}
    with pytest.raises(ValueError, match=r'concat: "small" has \(9, 7\) voxels'):
        concat(["image", "small"], "both").apply(batch)
