"""Torch's and MONAI's loaders as endless iterators that end their workers when they are closed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

from torch.utils.data import DataLoader, IterableDataset, RandomSampler

Loader = Literal["processes", "thread", "inline"]
"""`processes`: DataLoader with workers; `thread`: MONAI's ThreadDataLoader, the batch after this one is made in a
thread; `inline`: made at `next`."""
ENDLESS = 10**7
"""Batches; nobody draws that many."""


def batches_of(dataset: Any, batch: int, loader: Loader, workers: int, **options: Any) -> Generator[Any]:
    """Batches of items drawn with replacement from a dataset of MONAI's kind.

    `options` go to the loader. MONAI's own DataLoader seeds its transforms anew in every worker, hence not torch's.
    """
    from monai.data import DataLoader as MonaiLoader
    from monai.data import ThreadDataLoader

    shared = {"batch_size": batch, "sampler": drawn(dataset, batch), **options}
    if loader == "thread":
        return endless(ThreadDataLoader(dataset, num_workers=0, **shared))
    return endless(MonaiLoader(dataset, num_workers=workers if loader == "processes" else 0, **shared))


def stream(make: Callable[[], Any], workers: int) -> Generator[Any]:
    """What `make` gives when it is called again and again, in worker processes where `workers` > 0."""
    return endless(DataLoader(_Stream(make), batch_size=None, num_workers=workers, collate_fn=_as_it_is))


def drawn(dataset: Any, batch: int) -> RandomSampler:
    return RandomSampler(dataset, replacement=True, num_samples=ENDLESS * batch)


def endless(loader: Any) -> Generator[Any]:
    """The items of a loader; `close` ends its thread or its worker processes."""
    iterator = iter(loader)
    try:
        while True:
            yield next(iterator)
    finally:
        if hasattr(iterator, "close"):
            iterator.close()  # the thread's generator
        del iterator  # the last reference: torch ends the worker processes


def _as_it_is(item: Any) -> Any:
    return item


class _Stream(IterableDataset[Any]):
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.make()
