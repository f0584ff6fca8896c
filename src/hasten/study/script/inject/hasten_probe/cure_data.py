"""Caching of dataset items from outside: the same dataset object, under a subclass of its own class."""

from __future__ import annotations

import copy
import sys
from typing import Any

from .exp_items import first_random
from .exp_time import memory

_ROOM = 0.2
"""Share of the memory that stays free: later items aren't cached."""


class _BoundedCache(dict):
    def put(self, key: Any, value: Any) -> None:
        if len(self) % 64 == 0:
            free, total = memory()
            self.full = bool(total) and free < _ROOM * total
        if not self.full:
            self[key] = value


def kept_items(dataset: Any) -> Any:
    """Each item is made once and then returned as a copy, since collate functions and callers may write into it."""
    kind = type(dataset)
    if not hasattr(kind, "__getitem__") or not hasattr(kind, "__len__") or hasattr(dataset, "_hasten_kept"):
        return dataset

    def __getitem__(self: Any, index: Any) -> Any:
        cached = self._hasten_kept
        if index not in cached:
            item = kind.__getitem__(self, index)
            cached.put(index, copy.deepcopy(item))
            return item
        return copy.deepcopy(cached[index])

    members: dict[str, Any] = {"__getitem__": __getitem__}
    if hasattr(kind, "__getitems__"):
        members["__getitems__"] = lambda self, indices: [self[index] for index in indices]
    return _as(dataset, members)


def kept_prefix(dataset: Any) -> Any:
    """A MONAI `Dataset` keeps its items as they are before the first random transform, as a `CacheDataset` does."""
    monai_data, transforms = sys.modules.get("monai.data"), sys.modules.get("monai.transforms")
    if monai_data is None or transforms is None or not isinstance(dataset, monai_data.Dataset):
        return dataset
    compose, kind = getattr(dataset, "transform", None), type(dataset)
    plain = kind._transform is monai_data.Dataset._transform
    if not isinstance(compose, transforms.Compose) or not plain or hasattr(dataset, "_hasten_kept"):
        return dataset
    end = first_random(compose, transforms)

    def _transform(self: Any, index: int) -> Any:
        cached = self._hasten_kept
        prefix = cached.get(index)
        if prefix is None:
            prefix = compose(self.data[index], end=end)
            cached.put(index, prefix)
        return compose(copy.deepcopy(prefix), start=end) if end < len(compose.transforms) else copy.deepcopy(prefix)

    return _as(dataset, {"_transform": _transform})


def _as(dataset: Any, members: dict[str, Any]) -> Any:
    """The object under a subclass that bears its class's names, so that what asks for its type still finds it."""
    kind = type(dataset)
    try:
        dataset._hasten_kept = _BoundedCache()
        dataset.__class__ = type(kind.__name__, (kind,), {**members, "__module__": kind.__module__})
    except (AttributeError, TypeError):
        return dataset
    return dataset
