"""Lowers MONAI's deterministic transforms at the end of a chain."""

from __future__ import annotations

import re
from typing import Any

import torch

from hasten.augment import suffix
from hasten.augment.chain import Fixed
from hasten.augment.lower.types import Context, Lowered, NotLowered, build, keys_of, single

_TENSORS = "a batch is made of tensors"


def lower_suffix(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    import monai.transforms as mt

    match transform:
        case mt.CastToTyped() | mt.EnsureTyped():
            return _cast(transform, transform.dtype, context)
        case mt.ToTensord() | mt.ToNumpyd() | mt.ToCupyd():
            return _cast(transform, [transform.converter.dtype] * len(keys_of(transform)), context)
        case mt.ToDeviced():
            return Lowered(note="batches lie on the device of the program")
        case mt.Identityd():
            return Lowered(note="nothing to do")
        case mt.SelectItemsd():
            present = context.keys + context.created
            remaining = tuple(key for key in keys_of(transform) if key in present)
            if set(remaining) == set(present):
                return Lowered(note="the batch holds nothing else")
            return Lowered(ops=(build(transform, suffix.select, keys=remaining),))
        case mt.DeleteItemsd():
            deleted = tuple(
                key for key in context.keys + context.created
                if any(_names(key, pattern, use) for pattern, use in zip(transform.keys, transform.use_re, strict=True))
            )  # fmt: skip
            if not deleted:
                return Lowered(note="the batch holds none of them")
            return Lowered(ops=(build(transform, suffix.delete, keys=deleted),))
        case mt.ConcatItemsd():
            if transform.dim != 0:
                raise NotLowered(f"joins along axis {transform.dim}; Hasten joins channels")
            return single(transform, suffix.concat, name=transform.name)
        case mt.RepeatChanneld():
            return single(transform, suffix.repeat_channel, repeats=transform.repeater.repeats)
        case mt.AsDiscreted():
            return _discrete(transform)
        case mt.ConvertToMultiChannelBasedOnBratsClassesd():
            return single(transform, suffix.convert_to_brats_classes, et_label=transform.converter.et_label)
        case mt.LabelToMaskd():
            inner = transform.converter
            labels = tuple(int(each) for each in inner.select_labels)
            return single(transform, suffix.label_to_mask, select_labels=labels, merge_channels=inner.merge_channels)
    return None


def _cast(transform: Any, dtypes: Any, context: Context) -> Lowered:
    from monai.utils import get_equivalent_dtype

    ops: list[Fixed] = []
    for key, dtype in zip(keys_of(transform), dtypes, strict=True):
        if dtype is None or key not in context.keys + context.created:
            continue
        target = get_equivalent_dtype(dtype, torch.Tensor)
        # Everything except labels is float32 already.
        if key in context.label_keys or target != torch.float32:
            ops.append(build(transform, suffix.cast, keys=key, dtype=target))
    return Lowered(ops=tuple(ops), note="" if ops else _TENSORS)


def _names(key: str, pattern: str, use_re: bool) -> bool:
    return bool(re.search(pattern, key)) if use_re else key == pattern


def _discrete(transform: Any) -> Lowered:
    options = dict(transform.converter.kwargs)
    dtype = options.pop("dtype", torch.float32)
    if options.pop("dim", 0) != 0 or not options.pop("keepdim", True):
        raise NotLowered("works along another axis than the channels")
    ops = []
    for number, key in enumerate(keys_of(transform)):
        chosen = {field: getattr(transform, field)[number] for field in ("to_onehot", "threshold", "rounding")}
        chosen["argmax"] = bool(transform.argmax[number])
        ops.append(build(transform, suffix.as_discrete, keys=key, dtype=dtype, **chosen))
    return Lowered(ops=tuple(ops))
