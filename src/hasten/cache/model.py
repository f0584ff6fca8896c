"""Parsed records: each creates any number of items, whose small values are copied and whose large ones are mapped.

Metadata are many small objects; parsing them for every item would take longer than all the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hasten.cache.checked import DamagedEntry
from hasten.cache.item_bytes import read_header

_CAPACITY = 4096
_SMALL = 4096
"""Arrays up to this many bytes are stored in the model and copied."""
Make = Callable[[memoryview], Any]


class ParsedRecord:
    """A parsed record. `data` is needed only while the model is built."""

    def __init__(self, data: Any, *, verify: bool) -> None:
        """`verify` compares every block with its checksum. Raises DamagedEntry for what `encode` did not write."""
        view = memoryview(data).cast("B")
        tree, places = read_header(view, verify=verify)
        try:
            self.value, self.make = _plan(tree, view, places)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise DamagedEntry(f"is not what was written ({error})") from error

    def item(self, data: Any) -> Any:
        """An item: its large arrays are views into `data`, the record's bytes, writable where those are."""
        return self.value if self.make is None else self.make(memoryview(data))


class Models:
    """The models of the items that were read last; each process has its own."""

    def __init__(self) -> None:
        self.models: dict[Any, tuple[Any, ParsedRecord]] = {}

    def item(self, key: Any, version: Any, data: Any) -> Any:
        """The item of `data`, whose checksums are compared where this version of `key` is new. Raises DamagedEntry."""
        known_version, model = self.models.get(key, (None, None))
        if model is None or known_version != version:
            model = ParsedRecord(data, verify=True)
            while len(self.models) >= _CAPACITY:
                self.models.pop(next(iter(self.models)), None)
            self.models[key] = (version, model)
        return model.item(data)

    def __getstate__(self) -> dict[str, Any]:
        return {"models": {}}


def _plan(tree: Any, view: memoryview, places: list[tuple[int, int]]) -> tuple[Any, Make | None]:
    """A value that need not be copied and None, or an example and how to make another."""
    if not isinstance(tree, list):
        return tree, None
    kind, *rest = tree
    match kind:
        case "scalar":
            return np.dtype(rest[0]).type(rest[1]), None
        case "array" | "tensor":
            return _array(kind, view, places[rest[0]], rest[1], rest[2])
        case "meta":
            return _meta(_plan(rest[0], view, places), _plan(rest[1], view, places))
        case "dict":
            keys = [_plan(key, view, places)[0] for key, _ in rest[0]]
            return _container(dict, keys, [_plan(value, view, places) for _, value in rest[0]])
        case "list":
            return _container(list, list(range(len(rest[0]))), [_plan(each, view, places) for each in rest[0]])
        case "tuple":
            parts = [_plan(each, view, places) for each in rest[0]]
            example = tuple(value for value, _ in parts)
            if all(make is None for _, make in parts):
                return example, None
            return example, lambda data: tuple(value if make is None else make(data) for value, make in parts)
    raise KeyError(kind)


def _container(kind: type, keys: list[Any], parts: list[tuple[Any, Make | None]]) -> tuple[Any, Make]:
    """A dict or list whose constant entries are copied in one call."""
    values = [value for value, _ in parts]
    example: Any = dict(zip(keys, values, strict=True)) if kind is dict else values
    entries = [(key, make) for key, (_, make) in zip(keys, parts, strict=True) if make is not None]

    def copy(view: memoryview) -> Any:
        copied = example.copy()
        for key, make in entries:
            copied[key] = make(view)
        return copied

    return example, copy


def _array(kind: str, view: memoryview, place: tuple[int, int], dtype: str, shape: list[int]) -> tuple[Any, Make]:
    start, size = place
    if kind == "array":
        numpy_dtype = np.dtype(dtype)
        if size > _SMALL:
            return None, lambda data: np.frombuffer(data[start : start + size], numpy_dtype).reshape(shape)
        array = np.frombuffer(bytearray(view[start : start + size]), numpy_dtype).reshape(shape)
        return array, lambda _: array.copy()
    torch_dtype = getattr(torch, dtype)
    if size > _SMALL:
        return None, lambda data: _mapped(data, start, size, torch_dtype, shape)
    buffer = bytearray(view[start : start + size])
    tensor = _mapped(buffer, 0, size, torch_dtype, shape) if size else torch.empty(shape, dtype=torch_dtype)
    return tensor, lambda _: tensor.clone()


def _mapped(data: Any, start: int, size: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    if not memoryview(data).readonly:
        return torch.frombuffer(data, dtype=dtype, count=size // dtype.itemsize, offset=start).view(shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(data, dtype=dtype, count=size // dtype.itemsize, offset=start).view(shape)


def _meta(data: tuple[Any, Make | None], state: tuple[Any, Make | None]) -> tuple[Any, Make]:
    # Not by its constructor, whose conversions and checks take ten times as long as reading.
    from monai.data import MetaTensor

    tensor, attributes = data[1], state[1]
    assert tensor is not None
    assert attributes is not None

    def make(view: memoryview) -> Any:
        result = tensor(view).as_subclass(MetaTensor)
        result.__dict__.update(attributes(view))
        return result

    return None, make
