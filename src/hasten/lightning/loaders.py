"""Loaders for a Trainer. They are not torch DataLoaders, so that Lightning inserts no sampler."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

Batch = dict[str, Tensor]
Feeding = Callable[[int, int], Iterable[Mapping[str, Tensor]]]
"""The batches of steps `first` ... `last` - 1."""


class StepLoader:
    """An epoch is the next `length` batches of a stream that any step of can be the first one.

    `position` is the number of batches that were given out: the step that comes next. What is left of an epoch that
    the Trainer ends early is the beginning of the next one. is_fixed: every epoch has the batches of the first.
    """

    def __init__(self, feed: Feeding, length: int, *, position: int = 0, is_fixed: bool = False) -> None:
        self._feed, self._length = feed, length
        self._fixed = position if is_fixed else None
        self.position = position

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Generator[Batch, None, None]:
        # A generator reads the position when its first batch is requested: iterators are created earlier than that.
        first = self.position = self.position if self._fixed is None else self._fixed
        for batch in self._feed(first, first + self._length):
            self.position += 1
            yield dict(batch)

    def state_dict(self) -> dict[str, Any]:
        """Lightning takes a loader for one that goes on where it was, if it has this; the data module holds more."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the data module has restored the position already."""


class CaseLoader:
    """Whole cases one by one, as batches of one: tensors by key, and the case's name as `id`, a list of one."""

    def __init__(self, case: Callable[[int], Mapping[str, Tensor]], ids: Sequence[str], indices: Sequence[int]) -> None:
        """case: the tensors (1, C, ...) of a case. indices: those of this process."""
        self._case, self._ids, self._indices = case, ids, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in self._indices:
            yield {**self._case(number), "id": [self._ids[number]]}


def dealt(count: int, rank: int, size: int) -> tuple[int, ...]:
    """Of `count` cases those of one rank: as many for each, as ranks must make the same number of steps.

    Where the number is not divisible, the first ones occur twice, as with Lightning's own sampler.
    """
    each = -(-count // size)
    return tuple((number * size + rank) % count for number in range(each)) if count else ()
