"""`CacheDataset`: prepares the deterministic part of every item once and keeps it in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import Dataset, Subset

from hasten.cache.chain import SplitCompose, Transform, copy_item, describe_item, is_large, split_chain
from hasten.cache.identity import chain_identity
from hasten.cache.item_bytes import SharedItem, SharedItems
from hasten.prepare.threads import on_threads


class ChainDataset(Dataset[Any]):
    """A map-style data set whose items go through a chain of transforms; what the cached ones share.

    data: a sequence of items, usually dicts that name files. transform: see `hasten.cache.chain.split_chain`; it may be
    set anew, which prepares items again if their deterministic part is another one.
    Item access returns what the whole chain returns. A slice or list of positions gives a `Subset`.
    Raises RuntimeError naming the item and its files where a transform fails; the transform's own error is its cause.
    """

    def __init__(self, data: Sequence[Any], transform: Transform | Sequence[Transform] | None) -> None:
        self.data: Sequence[Any] = data
        self.chain: SplitCompose = split_chain(transform)

    @property
    def transform(self) -> Any:
        """The whole chain, MONAI's `Compose`."""
        return self.chain.compose

    @transform.setter
    def transform(self, transform: Transform | Sequence[Transform] | None) -> None:
        before, self.chain = chain_identity(self.chain), split_chain(transform)
        if chain_identity(self.chain) != before:
            self.set_data(self.data)

    def set_data(self, data: Sequence[Any]) -> None:
        """Replace the data."""
        self.data = data

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> ChainDataset:
        """Seed all random transforms: MONAI's DataLoader calls this at its start and in every worker process."""
        self.chain.compose.set_random_state(seed=seed, state=state)
        return self

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int | slice | Sequence[int]) -> Any:
        if isinstance(index, slice):
            return Subset(self, range(*index.indices(len(self))))
        if isinstance(index, Sequence):
            return Subset(self, list(index))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        return self.run_part(self.chain.draw, self.prepared(position), self.source(position))

    def source(self, index: int) -> int:
        """Position in `data` of what is at `index`."""
        return index

    def prepared(self, index: int) -> Any:
        """The item as it comes out of the deterministic part, free to be changed."""
        return self.prepare(index)

    def prepare(self, index: int) -> Any:
        """Run the deterministic part."""
        return self.run_part(self.chain.prepare, self.data[index], index)

    def run_part(self, run: Callable[[Any], Any], item: Any, index: int) -> Any:
        try:
            return run(item)
        except Exception as error:
            cause = error.__cause__ or error
            where, reason = describe_item(self.data, index), f"{type(cause).__name__}: {cause}"
            raise RuntimeError(f"{where} of {type(self).__name__} failed: {reason}") from error


class CacheDataset(ChainDataset):
    """Items up to the first random transform are prepared once, on threads, and kept in memory.

    cache_num, cache_rate: the largest number and share of the items that are kept; the rest is prepared at every
    access. The attribute `cache_num` is the number that is kept. num_workers: threads of the first filling; None takes
    the usable cores. progress: show a bar while filling. copy_cache: return items that random transforms may change in
    place (in host memory only the pages that change are copied); False returns the cached item itself. as_contiguous:
    keep arrays and tensors contiguous, as shared items are in any case. device: of the tensors of cached items; None
    keeps them in memory that worker processes share. hash_as_key, hash_func, runtime_cache: MONAI's, at their defaults.
    """

    shared = os.name != "nt"
    """Whether items are stored in `SharedItems`, whose memory is freed as a whole."""

    def __init__(
        self,
        data: Sequence[Any],
        transform: Transform | Sequence[Transform] | None = None,
        cache_num: int = sys.maxsize,
        cache_rate: float = 1.0,
        num_workers: int | None = None,
        progress: bool = True,
        copy_cache: bool = True,
        as_contiguous: bool = True,
        hash_as_key: bool = False,
        hash_func: Callable[..., bytes] | None = None,
        runtime_cache: Any = False,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(data, transform)
        check_monai("hash_as_key", hash_as_key, not hash_as_key, "items are kept by their positions")
        check_hashes("items are kept by their positions", hash_func=hash_func)
        reason = "items lie in memory that all processes share from the beginning"
        check_monai("runtime_cache", runtime_cache, runtime_cache is False, reason)
        if not 0 <= cache_rate <= 1:
            raise ValueError(f"cache_rate={cache_rate}: give the share of the items to keep, from 0 to 1")
        self.set_num, self.set_rate, self.cache_num = cache_num, cache_rate, 0
        self.as_contiguous = as_contiguous
        self.num_workers, self.progress, self.copy_cache = num_workers, progress, copy_cache
        self.device = None if device is None else torch.device(device)
        self.cached: list[Any] = []
        self.shared_items: SharedItems | None = None
        self.set_data(data)

    def set_data(self, data: Sequence[Any]) -> None:
        """Replace the data and refill the cache."""
        self.data = data
        self.cached = []  # first, so that old and new are never in memory together
        self.shared_items = SharedItems() if self.shared and self.device is None and self.copy_cache else None
        self.cache_num = max(0, min(self.set_num, int(len(data) * self.set_rate), len(data)))
        self.cached = self.load(range(self.cache_num))

    def load(self, indices: Sequence[int]) -> list[Any]:
        """The deterministic part of several items, on threads. The first failure ends it."""
        with closing(on_threads(self.to_stored, indices, self.num_workers, ahead=len(indices) + 1)) as items:
            return list(with_progress(items, len(indices), enabled=self.progress and len(indices) > 0))

    def to_stored(self, index: int) -> Any:
        """An item as the cache stores it."""
        item = self.prepare(index)
        if self.as_contiguous:
            from monai.transforms import convert_to_contiguous

            item = convert_to_contiguous(item, memory_format=torch.contiguous_format)
        if self.shared_items is not None and is_large(item):
            # What a record can't hold stays an object of this process.
            with suppress(ValueError):
                return self.shared_items.put(item)
        return item if self.device is None else tree_map_only(torch.Tensor, lambda one: one.to(self.device), item)

    def prepared(self, index: int) -> Any:
        return self.from_stored(self.cached[index]) if index < self.cache_num else self.prepare(index)

    def from_stored(self, cached: Any) -> Any:
        """An item of the cache as the caller gets it."""
        if isinstance(cached, SharedItem):
            return cached.item()
        return copy_item(cached) if self.copy_cache else cached


def check_monai(name: str, value: Any, accepted: bool, reason: str) -> None:
    """Raise ValueError for a value of an argument of MONAI's class that asks for what is not done here."""
    if not accepted:
        raise ValueError(f"{name}={value!r}: has no effect here, as {reason}; leave it out")


def check_hashes(reason: str, **functions: Callable[..., bytes] | None) -> None:
    """Raise ValueError for a hash function that is not MONAI's: those cover all of an item, as the keys here do."""
    for name, function in functions.items():
        check_monai(name, function, function is None or function.__module__.partition(".")[0] == "monai", reason)


def with_progress(steps: Iterable[Any], total: int, *, enabled: bool) -> Iterable[Any]:
    """The steps of preparing items, with a bar."""
    if not enabled:
        return steps
    from rich.progress import track

    return track(steps, description="preparing items", total=total, transient=True)
