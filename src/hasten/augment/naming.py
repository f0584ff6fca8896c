"""Determines the entries that a chain of transforms works on, and which of them hold classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hasten.augment.lower import is_random_crop, keys_of
from hasten.augment.steps import created_keys
from hasten.cache.chain import SplitCompose

_LABELS = ("label", "seg", "mask")


def batch_keys(cached: SplitCompose, requested: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entries of a batch, and those of them that a batch holds only if items have them as images.

    Raises ValueError if the chain names no keys.
    """
    if requested is not None:
        names = (requested,) if isinstance(requested, str) else tuple(requested)
        if not names:
            raise ValueError("keys is empty; name the entries that batches are to hold")
        return names, ()
    rest = cached.compose.transforms[cached.fixed :]
    created = _created(rest)
    sure = _ordered(key for each in rest if _changes(each) for key in keys_of(each) if key not in created)
    if any(is_random_crop(each) for each in rest):
        return sure, ()
    # Without a crop, entries that the random part does not change belong to the batch as well.
    maybe = _ordered(
        key for each in (*cached.fixed_transforms, *rest) for key in keys_of(each)
        if key not in sure and key not in created and _names_images(each)
    )  # fmt: skip
    if not sure and not maybe:
        raise ValueError("no transform of the chain names keys; name what batches are to hold by keys")
    return sure + maybe, maybe


def label_keys_of(cached: SplitCompose, keys: Sequence[str]) -> tuple[str, ...]:
    """The keys that a crop looks for classes in, that are read with `nearest` beside others that are not, or that are
    named like one."""
    candidates: list[str] = []
    for each in cached.compose.transforms[cached.fixed :]:
        candidates += [getattr(each, "label_key", None) or ""]
        modes = getattr(each, "mode", None)
        if isinstance(modes, tuple) and len(modes) == len(keys_of(each)):
            nearest = [key for key, mode in zip(keys_of(each), modes, strict=True) if str(mode).startswith("nearest")]
            candidates += nearest if len(nearest) < len(modes) else []
    candidates += [key for key in keys if any(word in key.lower() for word in _LABELS)]
    return tuple(key for key in keys if key in candidates)


def check_label_keys(requested: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Raises ValueError for a key that batches do not hold."""
    names = (requested,) if isinstance(requested, str) else tuple(requested)
    absent = [key for key in names if key not in keys]
    if absent:
        raise ValueError(f'label_keys: "{absent[0]}" is not among the keys of the batch {list(keys)}')
    return names


def _created(transforms: Sequence[Any]) -> set[str]:
    """Entries that the transforms add to an item. What one of them reads before is replaced, not added."""
    created: set[str] = set()
    read: set[str] = set()
    for each in transforms:
        if _names_images(each) or created_keys(each):
            read |= set(keys_of(each))
        created |= set(created_keys(each)) - read
    return created


def _changes(transform: Any) -> bool:
    """Whether it changes its keys, beyond conversion and selection, so that they must be in the batch."""
    import monai.transforms as mt

    converting = mt.EnsureTyped | mt.CastToTyped | mt.ToTensord | mt.ToNumpyd | mt.ToCupyd | mt.ToDeviced | mt.Identityd
    return not isinstance(transform, converting | mt.SelectItemsd | mt.DeleteItemsd)


def _names_images(transform: Any) -> bool:
    import monai.transforms as mt

    return not isinstance(transform, mt.SelectItemsd | mt.DeleteItemsd | mt.CopyItemsd)


def _ordered(keys: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(key) for key in keys))
