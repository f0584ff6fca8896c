"""Deterministic steps at the end of a chain, each on a whole batch of (B, C, *S): MONAI's per-sample transforms.

Every function returns a `Fixed`; `keys` is one entry of the batch or several. Invalid arguments raise a ValueError with
the name of the step at once, an invalid batch when it is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, Fixed

Keys = str | Sequence[str]


def as_discrete(
    keys: Keys,
    *,
    argmax: bool = False,
    to_onehot: int | None = None,
    threshold: float | None = None,
    rounding: str | None = None,
    dtype: Any = torch.float32,
) -> Fixed:
    """MONAI's AsDiscrete: highest channel, then one channel a class, then `>= threshold`, then rounding to integers.

    argmax: (B, C, *S) to (B, 1, *S). to_onehot: number of classes; (B, 1, *S) to (B, to_onehot, *S), all 0 where a
    value is not one of them (MONAI fails there). rounding: "torchrounding". dtype: of what comes out.
    """
    if to_onehot is not None and (isinstance(to_onehot, bool) or not isinstance(to_onehot, int) or to_onehot < 1):
        raise ValueError(f"as_discrete: to_onehot={to_onehot}; give the number of classes, background included")
    if rounding not in (None, "torchrounding"):
        raise ValueError(f'as_discrete: rounding="{rounding}"; write "torchrounding" or leave it out')
    if rounding is not None and threshold is not None:
        raise ValueError(
            f'as_discrete: rounding="{rounding}" and threshold={threshold} exclude each other; give one of them'
        )
    change = partial(
        _discrete, argmax=argmax, to_onehot=to_onehot, threshold=threshold, rounding=rounding is not None,
        dtype=_dtype_of("as_discrete", dtype),
    )  # fmt: skip
    return _changing("as_discrete", keys, change)


def to_channels(keys: Keys, groups: Sequence[Sequence[int]]) -> Fixed:
    """One bool channel for each group of classes, which may overlap: (B, 1, *S) to (B, len(groups), *S).

    nnU-Net's regions: `groups=[(1, 2, 3), (2, 3), (3,)]`.
    """
    classes = tuple(tuple(int(value) for value in group) for group in groups)
    if not classes or not all(classes):
        raise ValueError(f"to_channels: groups={groups}; give at least one group and at least one class in each")
    return _changing("to_channels", keys, partial(_grouped, groups=classes))


def convert_to_brats_classes(keys: Keys, et_label: int = 4) -> Fixed:
    """Classes of BraTS to tumour core, whole tumour and enhancing tumour: (B, 1, *S) to (B, 3, *S) bool.

    et_label: of the enhancing tumour, 4 until 2022 and 3 in 2023. MONAI's ConvertToMultiChannelBasedOnBratsClasses,
    which in 2-D leaves an axis of 1 after the channels; that axis is left out here.
    """
    if et_label in (1, 2):
        raise ValueError(f"convert_to_brats_classes: et_label={et_label}; 1 and 2 are other classes, write 4 or 3")
    groups = ((1, et_label), (1, et_label, 2), (et_label,))
    return _changing("convert_to_brats_classes", keys, partial(_grouped, groups=groups))


def label_to_mask(keys: Keys, select_labels: int | Sequence[int], *, merge_channels: bool = False) -> Fixed:
    """MONAI's LabelToMask: where a label is one of `select_labels`, (B, 1, *S) bool; of several channels, those
    selected.

    merge_channels: one bool channel, true where any of the selected is not 0.
    """
    labels = (select_labels,) if isinstance(select_labels, int) else tuple(int(value) for value in select_labels)
    if not labels:
        raise ValueError("label_to_mask: select_labels is empty; name at least one class")
    return _changing("label_to_mask", keys, partial(_selected, labels=labels, merge=merge_channels))


def repeat_channel(keys: Keys, repeats: int) -> Fixed:
    """MONAI's RepeatChannel: every channel `repeats` times in a row, (B, C, *S) to (B, C * repeats, *S)."""
    if repeats < 1:
        raise ValueError(f"repeat_channel: repeats={repeats}; at least 1 is needed")
    return _changing("repeat_channel", keys, partial(_repeated, repeats=repeats))


def cast(keys: Keys, dtype: Any) -> Fixed:
    """MONAI's CastToType and EnsureType. dtype: torch's, numpy's, or its name ("float32", "uint8")."""
    return _changing("cast", keys, partial(_converted, dtype=_dtype_of("cast", dtype)))


def concat(keys: Keys, name: str) -> Fixed:
    """MONAI's ConcatItemsd: the channels of `keys` one after the other under `name`; the entries themselves stay."""
    return Fixed(
        name="concat", apply=partial(_joined, keys=_tuple("concat", keys), name=name), keys=_tuple("concat", keys)
    )


def select(keys: Keys) -> Fixed:
    """MONAI's SelectItemsd: leaves only these entries."""
    names = _tuple("select", keys)
    return Fixed(name="select", apply=partial(_select, keys=names), keys=names)


def delete(keys: Keys) -> Fixed:
    """MONAI's DeleteItemsd: leaves out these entries; one that is not there is no error."""
    return Fixed(name="delete", apply=partial(_delete, keys=_tuple("delete", keys)))


# Stages hold partials of module functions, not closures, so that they can be pickled.


def _changing(name: str, keys: Keys, change: Callable[..., Tensor]) -> Fixed:
    names = _tuple(name, keys)
    return Fixed(name=name, apply=partial(_changed, name=name, keys=names, change=change), keys=names)


def _changed(batch: Batch, name: str, keys: tuple[str, ...], change: Callable[..., Tensor]) -> Batch:
    return {**batch, **{key: change(_entry(batch, name, key), where=f'{name}: "{key}"') for key in keys}}


def _entry(batch: Batch, name: str, key: str) -> Tensor:
    if key not in batch:
        raise ValueError(f'{name}: keys: "{key}" is not among the entries of the batch {sorted(batch)}')
    return batch[key]


def _discrete(
    value: Tensor,
    where: str,
    argmax: bool,
    to_onehot: int | None,
    threshold: float | None,
    rounding: bool,
    dtype: torch.dtype,
) -> Tensor:
    if argmax:
        value = torch.argmax(value, dim=1, keepdim=True)
    if to_onehot is not None:
        _check_classes(value, where)
        # Compared, not scattered: with scatter, a value out of range would abort the program on a GPU.
        classes = torch.arange(to_onehot, device=value.device)
        value = value.to(torch.int64) == classes.view(1, -1, *[1] * (value.ndim - 2))
    if threshold is not None:
        value = value >= threshold
    if rounding and value.is_floating_point():
        value = torch.round(value)
    return value.to(dtype)


def _grouped(value: Tensor, where: str, groups: tuple[tuple[int, ...], ...]) -> Tensor:
    _check_classes(value, where)
    equal = {label: value == label for label in sorted({label for group in groups for label in group})}
    channels = []
    for first, *others in groups:
        channel = equal[first]
        for label in others:
            channel = channel | equal[label]
        channels.append(channel)
    return torch.cat(channels, dim=1)


def _selected(value: Tensor, where: str, labels: tuple[int, ...], merge: bool) -> Tensor:
    if value.shape[1] == 1:
        return _grouped(value, where, (labels,))
    outside = [label for label in labels if not 0 <= label < value.shape[1]]
    if outside:
        raise ValueError(f"{where} has {value.shape[1]} channels; select_labels={labels} asks for channel {outside[0]}")
    channels = torch.cat([value[:, label : label + 1] for label in labels], dim=1)
    return channels.any(1, keepdim=True) if merge else channels


def _repeated(value: Tensor, where: str, repeats: int) -> Tensor:
    return torch.repeat_interleave(value, repeats, dim=1)


def _converted(value: Tensor, where: str, dtype: torch.dtype) -> Tensor:
    return value.to(dtype)


def _joined(batch: Batch, keys: tuple[str, ...], name: str) -> Batch:
    values = [_entry(batch, "concat", key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if value.shape[2:] != values[0].shape[2:]:
            raise ValueError(
                f'concat: "{key}" has {tuple(value.shape[2:])} voxels and "{keys[0]}" {tuple(values[0].shape[2:])}; '
                "they must cover the same voxels"
            )
    return {**batch, name: torch.cat(values, dim=1)}


def _select(batch: Batch, keys: tuple[str, ...]) -> Batch:
    return {key: _entry(batch, "select", key) for key in keys}


def _delete(batch: Batch, keys: tuple[str, ...]) -> Batch:
    return {key: value for key, value in batch.items() if key not in keys}


def _check_classes(value: Tensor, where: str) -> None:
    if value.shape[1] != 1:
        raise ValueError(
            f"{where} has {value.shape[1]} channels; classes come in 1 channel (as_discrete: argmax=True makes it)"
        )


def _tuple(name: str, keys: Keys) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if not names:
        raise ValueError(f"{name}: keys={keys}; name at least one entry of the batch")
    return names


def _dtype_of(name: str, dtype: Any) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        converted = getattr(torch, np.dtype(dtype).name, None)
    except TypeError:
        converted = getattr(torch, str(dtype), None)
    if not isinstance(converted, torch.dtype):
        raise ValueError(f'{name}: dtype={dtype}; no such type of tensors: write one like torch.float32 or "uint8"')
    return converted
