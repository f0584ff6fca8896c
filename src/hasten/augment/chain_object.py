"""Converts the object of a user's chain file to a plan of Hasten's operations.

Prepared cases hold two entries, "image" and "label" (classes), and a batch of a run holds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hasten.augment.chain import BatchOp, Chain, Fixed, PerSample
from hasten.augment.crop import CropOp
from hasten.augment.lower import Context, NotLowered, is_random_crop, keys_of, lower, name_of, names_of
from hasten.augment.maps import MapOp
from hasten.augment.op import ValueOp
from hasten.augment.steps import FUSED, ChainStep, LoweredChain, made_by, plan_steps
from hasten.cache.chain import split_chain
from hasten.config.schema import Triple

KEYS, LABEL_KEYS = ("image", "label"), ("label",)
_NEEDED = ("label_key", "image_key", "w_key", "fg_indices_key", "bg_indices_key", "indices_key")
"""Attributes of MONAI's transforms that name entries besides `keys`."""


def plan_of(value: Any, patch: Triple, spatial_dims: int) -> LoweredChain:
    """Whatever a chain file may hold, as operations: a Chain, a list of operations, or MONAI's transforms.

    patch: (D, H, W) that the run crops to where there is no crop. Raises ValueError for anything else.
    """
    from monai.transforms import Compose

    if isinstance(value, Chain):
        if set(value.keys) != set(KEYS) or value.label_keys != LABEL_KEYS:
            raise ValueError(
                f"is a Chain with keys={value.keys}, label_keys={value.label_keys}; a run needs keys={KEYS}, "
                f"label_keys={LABEL_KEYS}"
            )
        return of_ops(value.crop, value.ops)
    members = value.transforms if isinstance(value, Compose) else value
    if not isinstance(members, list | tuple):
        raise ValueError(
            f"is a {type(value).__name__}; a list of Hasten's operations, a Chain, or a MONAI Compose is needed"
        )
    if not members:
        raise ValueError("is empty; write augment.preset=none for a crop alone")
    for member in members:
        if isinstance(member, type):
            raise ValueError(f"holds the class {member.__name__}; write {member.__name__}(...)")
        if not _is_op(member) and not callable(member):
            raise ValueError(f"holds a {type(member).__name__}, which is no operation of Hasten and no transform")
    of_hasten = [_is_op(member) for member in members]
    if not any(of_hasten):
        return _of_monai(value, patch, spatial_dims)
    if not all(of_hasten):
        raise ValueError(
            f"mixes Hasten's {name_of(members[of_hasten.index(True)])} with the transform "
            f"{name_of(members[of_hasten.index(False)])}; write all of them as one or the other"
        )
    crop = members[0] if isinstance(members[0], CropOp) else None
    ops = tuple(members[1:] if crop is not None else members)
    for op in ops:
        if isinstance(op, CropOp):
            raise ValueError(f"{name_of(op)} must come first, and be the only crop")
    return of_ops(crop, ops)


def _is_op(value: Any) -> bool:
    return isinstance(value, CropOp | MapOp | ValueOp | BatchOp | Fixed | PerSample)


def of_ops(crop: CropOp | None, ops: Sequence[Any]) -> LoweredChain:
    """Operations as they are."""
    first = () if crop is None else (ChainStep(transform=crop, how=FUSED, ops=(crop,)),)
    steps = (ChainStep(transform=op, how=FUSED, ops=(op,), positions=(place,)) for place, op in enumerate(ops))
    return LoweredChain(steps=(*first, *steps), source=(), crop=crop, ops=tuple(ops))


def _of_monai(transforms: Any, patch: Triple, spatial_dims: int) -> LoweredChain:
    """Random dictionary transforms lowered, those before a late crop left to run on whole cases."""
    cached = split_chain(list(transforms) if isinstance(transforms, list | tuple) else transforms)
    if cached.fixed:
        raise ValueError(
            f"{names_of(cached.fixed_transforms)}: does the same each time, before anything random; leave it out, as "
            "prepare.* does that work once a case"
        )
    _check_transforms(cached.compose.transforms)
    context = Context(keys=KEYS, label_keys=LABEL_KEYS, named=LABEL_KEYS, dims=spatial_dims)
    if not any(is_random_crop(each) for each in cached.compose.transforms):
        return plan_steps(cached, context, size=patch, whole=False)
    plan = plan_steps(cached, context)
    if not plan.source:
        return plan
    last = next(each for each in reversed(plan.source) if is_random_crop(each))
    try:
        lowered = lower(last, replace(context, opening=True))
    except NotLowered:
        lowered = None  # checked with the first batch
    if lowered is not None and lowered.crop is not None and lowered.crop.size != patch:
        raise ValueError(wrong_size(lowered.crop.size, patch))
    return plan_steps(cached, context, size=patch, least=len(plan.source))


def _check_transforms(transforms: Sequence[Any], before: Collection[str] = ()) -> None:
    """Raises ValueError for a transform of arrays, and for unknown keys."""
    from monai.transforms import Compose, MapTransform, Transform

    created = set(before)
    for each in transforms:
        if isinstance(each, Transform) and not isinstance(each, MapTransform | Compose):
            raise ValueError(
                f"{name_of(each)}: works on arrays; write {name_of(each)}d, with keys among {', '.join(KEYS)}"
            )
        needed = () if getattr(each, "allow_missing_keys", False) else keys_of(each)
        others = (getattr(each, name, None) for name in _NEEDED)
        check_keys(name_of(each), [*needed, *(key for key in others if key is not None)], {*KEYS, *created})
        created |= set(made_by(each))
        if isinstance(each, Compose):  # OneOf and the like
            _check_transforms(each.transforms, created)


def check_keys(name: str, keys: Sequence[str], there: Collection[str]) -> None:
    """Raises ValueError for a key of the operation or transform `name` that is not among those that are there."""
    absent = [key for key in keys if key not in there]
    if absent:
        raise ValueError(
            f'{name}: needs "{absent[0]}", and the cases of a run have {" and ".join(KEYS)} only; name one of these, '
            "or leave it out"
        )


def wrong_size(size: Triple, patch: Triple) -> str:
    return (
        f"makes patches of {list(size)}, and sample.patch is {list(patch)}; set sample.patch={list(size)}, or let the "
        "chain end with that size"
    )
