"""A batch decollated lazily: a sample's values are made on first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monai.data import decollate_batch
from torch import Tensor

_LATER = object()


class _Batch:
    """The values of a batch by key, and their decollated samples so far."""

    __slots__ = ("parts", "size", "values")

    def __init__(self, values: Mapping[str, Any], size: int) -> None:
        self.values, self.size = values, size
        self.parts: dict[str, list[Any]] = {}

    def part(self, key: str, number: int) -> Any:
        if key not in self.parts:
            parts = decollate_batch(self.values[key])
            self.parts[key] = parts if isinstance(parts, list) else [parts] * self.size
        return self.parts[key][number]


def _all_made(name: str) -> Any:
    """dict's own method, after every value was made."""
    method = getattr(dict, name)

    def call(self: LazySample, *args: Any, **kwargs: Any) -> Any:
        for key in self:
            self[key]
        return method(self, *args, **kwargs)

    call.__name__ = name
    return call


class LazySample(dict[str, Any]):
    """One sample of a batch, as MONAI's `decollate_batch` gives it, and compares equal to it.

    A value is made on first access: a handler that prints the loss does not pay for splitting images, and one that
    reads images does not wait for the device to compute the loss.
    """

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: _Batch, number: int) -> None:
        super().__init__(dict.fromkeys(batch.values, _LATER))
        self._batch, self._number = batch, number

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if value is _LATER:
            value = self._batch.part(key, self._number)
            self[key] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[Any]:
        # The same, but its own: only then do `dict(sample)` and `{**sample}` ask `__getitem__` for the values.
        return super().__iter__()

    def copy(self) -> dict[Any, Any]:
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    items = _all_made("items")
    values = _all_made("values")
    pop = _all_made("pop")
    popitem = _all_made("popitem")
    setdefault = _all_made("setdefault")
    __eq__ = _all_made("__eq__")
    __ne__ = _all_made("__ne__")
    __repr__ = _all_made("__repr__")
    __or__ = _all_made("__or__")
    __ror__ = _all_made("__ror__")

    def untouched(self, key: str) -> Tensor | None:
        """The value of the whole batch where it is () and nobody has asked for it here, so that nobody has to wait."""
        whole = self._batch.values.get(key)
        unread = super().get(key) is _LATER
        return whole if unread and isinstance(whole, Tensor) and whole.ndim == 0 else None


def taken_apart(values: Any) -> Any:
    """A batch-first dict or list as the list of its samples; a tensor of () is a number in each of them.

    As `monai.transforms.Decollated(keys=None, detach=True)`, which takes over where the values are not tensors of one
    batch size.
    """
    if type(values) is dict:
        sizes = {len(value) for value in values.values() if isinstance(value, Tensor) and value.ndim > 0}
        plain = all(value is None or isinstance(value, Tensor) for value in values.values())
        if plain and len(sizes) == 1:
            batch = _Batch(values, sizes.pop())
            return [LazySample(batch, number) for number in range(batch.size)]
    return decollate_batch(values)
