from __future__ import annotations

import threading
import time
from typing import Any

import monai.data
import pytest
import torch

from hasten.monai.smart import SmartCacheDataset

FIVE = [{"id": number} for number in range(1, 6)]


def ids(dataset: SmartCacheDataset) -> list[int]:
    return [dataset[number]["id"] for number in range(len(dataset))]


class Slow:
    """A deterministic transform that can be held up."""

    deterministic = True

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.done: list[int] = []

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        assert self.free.wait(30)
        if item["id"] == 13:
            raise ValueError("unlucky")
        self.done.append(item["id"])
        return {**item, "image": torch.zeros(8)}


def test_the_window_moves_as_published() -> None:
    with SmartCacheDataset(FIVE, None, 0.25, cache_num=4, shuffle=False, progress=False) as dataset:
        seen = [ids(dataset)]
        for _ in range(5):
            dataset.update_cache()
            seen.append(ids(dataset))
    assert seen == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 1], [4, 5, 1, 2], [5, 1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize("seed", [0, 7])
def test_the_order_is_that_of_monais_class(seed: int) -> None:
    rows = [{"id": number} for number in range(23)]
    theirs = monai.data.SmartCacheDataset(rows, None, 0.3, 9, progress=False, seed=seed)
    with SmartCacheDataset(rows, None, 0.3, 9, progress=False, seed=seed) as ours:
        assert ids(ours) == [theirs[number]["id"] for number in range(9)]
        assert [row["id"] for row in ours.data] == [row["id"] for row in theirs.data]
    assert rows == [{"id": number} for number in range(23)]


def test_replacements_are_prepared_while_the_epoch_runs() -> None:
    slow = Slow()
    dataset = SmartCacheDataset(FIVE, slow, 0.5, cache_num=2, shuffle=False, progress=False)
    slow.free.clear()
    dataset.start()
    assert ids(dataset) == [1, 2]  # an epoch goes on while nothing is ready
    slow.free.set()
    end = time.monotonic() + 30
    while 3 not in slow.done and time.monotonic() < end:
        time.sleep(0.001)
    begin = time.perf_counter()
    slow.free.clear()
    dataset.update_cache()  # what is ready is taken without waiting for what comes after it
    assert time.perf_counter() - begin < 10
    assert ids(dataset) == [2, 3]
    slow.free.set()
    dataset.shutdown()


def test_shutdown_ends_the_threads_and_it_can_be_taken_up_again() -> None:
    before = set(threading.enumerate())
    dataset = SmartCacheDataset(FIVE, Slow(), 0.5, cache_num=2, shuffle=False, progress=False)
    for _ in range(2):
        dataset.update_cache()
        dataset.shutdown()
        assert set(threading.enumerate()) <= before


def test_a_failing_replacement_is_named_and_tried_again() -> None:
    data = [{"id": 1, "image": "a.nii"}, {"id": 13, "image": "b.nii"}]
    with SmartCacheDataset(data, Slow(), 1.0, cache_num=1, shuffle=False, progress=False) as dataset:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"item 1 \(image=b\.nii\).*unlucky"):
                dataset.update_cache()
            assert ids(dataset) == [1]
