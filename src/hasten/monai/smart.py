"""`SmartCacheDataset`: a window of items in memory that moves over a data set too large to keep."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from hasten.cache.chain import Transform
from hasten.cache.dataset import CacheDataset


class SmartCacheDataset(CacheDataset):
    """`cache_num` items are in memory; each epoch the oldest make room for the next ones, prepared in the background.

    With 5 items, cache_num=4 and replace_rate=0.25 the epochs hold 1 2 3 4, 2 3 4 5, 3 4 5 1, 4 5 1 2, and so on.
    Call `update_cache()` between epochs (`start()` before the first one begins preparing at once) and `shutdown()` at
    the end, or use it in a `with` statement. Its length is that of the window.

    replace_rate: share of the window that is replaced, rounded up. shuffle: in the order that MONAI's class gives for
    the seed; the caller's list stays as it is. num_replace_workers: threads that prepare replacements. The rest is as
    for `CacheDataset`.
    """

    shared = False

    def __init__(
        self,
        data: Sequence[Any],
        transform: Transform | Sequence[Transform] | None = None,
        replace_rate: float = 0.1,
        cache_num: int = sys.maxsize,
        cache_rate: float = 1.0,
        num_init_workers: int | None = None,
        num_replace_workers: int | None = 1,
        progress: bool = True,
        shuffle: bool = True,
        seed: int = 0,
        copy_cache: bool = True,
        as_contiguous: bool = True,
        runtime_cache: Any = False,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 < replace_rate <= 1:
            raise ValueError(
                f"replace_rate={replace_rate}: give a share above 0 and up to 1; CacheDataset replaces none"
            )
        self.replace_rate, self.shuffle, self.seed = replace_rate, shuffle, seed
        self.num_replace_workers = num_replace_workers
        self.start_position = 0
        self.pool: ThreadPoolExecutor | None = None
        self.coming: list[Future[Any]] = []
        more: dict[str, Any] = {"runtime_cache": runtime_cache, "device": device}
        super().__init__(
            data, transform, cache_num, cache_rate, num_init_workers, progress, copy_cache, as_contiguous, **more
        )

    def set_data(self, data: Sequence[Any]) -> None:
        """Replace the data and refill the window; stops preparing replacements first."""
        self.shutdown()
        rows = list(data)
        if self.shuffle:
            np.random.RandomState(self.seed).shuffle(rows)
        self.start_position = 0
        super().set_data(rows)

    def __len__(self) -> int:
        return len(self.cached)

    @property
    def window(self) -> list[int]:
        """Positions in the (shuffled) data of the items of this epoch, in the order in which they entered."""
        return [(self.start_position + number) % len(self.data) for number in range(len(self.cached))]

    @property
    def num_replaced(self) -> int:
        """Items that each `update_cache` replaces."""
        return min(math.ceil(len(self.cached) * self.replace_rate), len(self.data) - len(self.cached))

    def source(self, index: int) -> int:
        return self.window[index]

    def prepared(self, index: int) -> Any:
        return self.from_stored(self.cached[index])

    def start(self) -> None:
        """Begin to prepare the next replacements in the background."""
        if self.coming or not self.num_replaced:
            return
        if self.pool is None:
            self.pool = ThreadPoolExecutor(max(1, self.num_replace_workers or 1), thread_name_prefix="smart-cache")
        first = self.start_position + len(self.cached)
        positions = [(first + number) % len(self.data) for number in range(self.num_replaced)]
        self.coming = [self.pool.submit(self.to_stored, position) for position in positions]

    def update_cache(self) -> None:
        """Move the window, waiting for replacements that are not ready, and begin with the next ones.

        Raises what preparing a replacement raised; the window then stays, and the next call tries again.
        """
        self.start()
        coming, self.coming = self.coming, []
        items = [future.result() for future in coming]
        self.cached = [*self.cached[len(items) :], *items]
        self.start_position = (self.start_position + len(items)) % max(1, len(self.data))
        self.start()

    def shutdown(self) -> None:
        """Stop preparing and free what was prepared ahead."""
        for future in self.coming:
            future.cancel()
        self.coming = []
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
            self.pool = None

    def __enter__(self) -> SmartCacheDataset:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        # For worker processes, which read the window and never move it.
        return {**self.__dict__, "pool": None, "coming": []}


class SmartCacheHandler:
    """MONAI's handler of this name, which takes no data set but MONAI's own, for `hasten.SmartCacheDataset`."""

    def __init__(self, smartcacher: Any) -> None:
        self.smartcacher = smartcacher

    def attach(self, engine: Any) -> None:
        """Prepare replacements while `engine` runs, and swap them in after each of its epochs."""
        from ignite.engine import Events

        engine.add_event_handler(Events.STARTED, lambda: self.smartcacher.start())
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: self.smartcacher.update_cache())
        engine.add_event_handler(Events.COMPLETED, lambda: self.smartcacher.shutdown())
