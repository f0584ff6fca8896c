"""Lowers MONAI's transforms that convert, select and join the entries of an item, and those that run cuCIM."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch

from hasten.augment.chain import Batch, Fixed, PerSample
from hasten.augment.cucim import PARAMETERS, OnGpu, arguments
from hasten.augment.lower.types import Context, Lowered, NotLowered, keys_of, name_of

_TENSORS = "a batch is made of tensors"


def lower_suffix(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises NotLowered, and ValueError for invalid arguments."""
    import monai.transforms as mt

    present = context.keys + context.created
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
            return _selected("select", tuple(key for key in present if key in keys_of(transform)), context)
        case mt.DeleteItemsd():
            names = tuple(zip(transform.keys, transform.use_re, strict=True))
            out = {key for key in present for name, by_re in names if (re.search(name, key) if by_re else key == name)}
            return _selected("delete", tuple(key for key in present if key not in out), context)
        case mt.ConcatItemsd():
            if transform.dim != 0:
                raise NotLowered(f"joins along axis {transform.dim}; Hasten joins channels")
            keys = keys_of(transform)
            op = Fixed(name="concat", apply=partial(_joined, keys=keys, name=transform.name), keys=keys)
            return Lowered(ops=(op,))
    return None


def _cast(transform: Any, dtypes: Any, context: Context) -> Lowered:
    from monai.utils import get_equivalent_dtype

    ops: list[Fixed] = []
    for key, dtype in zip(keys_of(transform), dtypes, strict=True):
        if dtype is None or key not in context.keys + context.created:
            continue
        target: Any = get_equivalent_dtype(dtype, torch.Tensor)
        # Everything except labels is float32 already.
        if key in context.label_keys or target != torch.float32:
            ops.append(Fixed(name="cast", apply=partial(_converted, key=key, dtype=target), keys=(key,)))
    return Lowered(ops=tuple(ops), note="" if ops else _TENSORS)


def _selected(name: str, keys: tuple[str, ...], context: Context) -> Lowered:
    """The step that leaves only these entries."""
    if set(keys) == set(context.keys + context.created):
        return Lowered(note="the batch holds nothing else")
    return Lowered(ops=(Fixed(name=name, apply=partial(_only, keys=keys), keys=keys),))


# Stages hold partials of module functions, not closures, so that they can be pickled.


def _converted(batch: Batch, key: str, dtype: torch.dtype) -> Batch:
    return {**batch, key: batch[key].to(dtype)}


def _joined(batch: Batch, keys: tuple[str, ...], name: str) -> Batch:
    return {**batch, name: torch.cat([batch[key] for key in keys], dim=1)}


def _only(batch: Batch, keys: tuple[str, ...]) -> Batch:
    return {key: batch[key] for key in keys}


def is_cucim(transform: Any) -> bool:
    import monai.transforms as mt

    return isinstance(transform, mt.CuCIMd | mt.RandCuCIMd)


def lower_cucim(transform: Any, context: Context) -> Lowered | None:
    """None for other transforms. Raises ValueError where cuCIM can't run, or has no such transform."""
    if not is_cucim(transform):
        return None
    name = transform.name
    if name not in PARAMETERS:
        raise ValueError(f'{name_of(transform)}: cuCIM has no transform "{name}"; it has {", ".join(PARAMETERS)}')
    kwargs = arguments(name, transform.trans.args, transform.trans.kwargs)
    if not context.cucim:
        raise ValueError(
            f"{name_of(transform)}: {name} needs a CUDA device, cupy and cucim (and strict=False); write MONAI's own "
            "transform for it"
        )
    op = PerSample(transforms=(OnGpu(keys_of(transform), name, kwargs),))
    return Lowered(ops=(op,), note="cuCIM on the GPU, sample by sample")
