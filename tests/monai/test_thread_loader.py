from __future__ import annotations

import os
import threading
import traceback
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset

from hasten.monai.thread_loader import ThreadBuffer, ThreadDataLoader


class Numbers(Dataset[Any]):
    def __init__(self, count: int = 10, bad: int | None = None) -> None:
        self.data = [f"file{number}.nii" for number in range(count)]
        self.bad = bad

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            raise KeyError("no such thing")
        return torch.tensor(index)


def loaders() -> int:
    return sum(thread.name == "loader" for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("buffer", [1, 3])
def test_batches_are_those_of_a_data_loader(workers: int, buffer: int) -> None:
    loader = ThreadDataLoader(Numbers(), num_workers=workers, batch_size=4, buffer_size=buffer)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    assert loaders() == 0


def test_a_failing_item_keeps_its_type_and_traceback() -> None:
    with pytest.raises(KeyError, match="no such thing") as failure:
        list(ThreadDataLoader(Numbers(bad=3)))
    output = "".join(traceback.format_exception(failure.value))
    assert "__getitem__" in output
    assert loaders() == 0


def test_a_thousand_epochs_leak_no_thread() -> None:
    loader, before = ThreadDataLoader(Numbers(3)), set(threading.enumerate())
    files = psutil.Process().num_fds()
    for _ in range(1000):
        for _ in loader:
            pass
    assert set(threading.enumerate()) <= before
    assert psutil.Process().num_fds() <= files


def test_each_batch_comes_as_often_as_asked() -> None:
    batches = list(ThreadDataLoader(Numbers(4), batch_size=2, repeats=3))
    assert [batch.tolist() for batch in batches] == [[0, 1]] * 3 + [[2, 3]] * 3
    assert batches[0] is batches[2]
    with pytest.raises(ValueError, match="repeats=0"):
        ThreadDataLoader(Numbers(), repeats=0)


class Where(Numbers):
    def __getitem__(self, index: int) -> tuple[int, str]:  # type: ignore[override]
        return index, f"{os.getpid()} {threading.current_thread().name}"


def test_workers_can_be_threads() -> None:
    for _ in range(2):
        loader = ThreadDataLoader(Where(8), num_workers=2, batch_size=2, use_thread_workers=True, buffer_timeout=0.1)
        results = [(numbers.tolist(), names) for numbers, names in loader]
        assert [numbers for numbers, _ in results] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        places = {name for _, names in results for name in names}
        assert len(places) == 2
        assert {place.split()[0] for place in places} == {str(os.getpid())}


def test_a_buffer_gives_what_its_source_gives_each_time_anew() -> None:
    buffer = ThreadBuffer([1, 2, 3], buffer_size=2, timeout=0.1)
    assert list(buffer) == list(buffer) == [1, 2, 3]
    seen = []
    for value in buffer:
        seen.append(value)
        buffer.stop()
    assert seen == [1]
    assert loaders() == 0


def test_it_seeds_transforms_and_joins_lists_as_monais() -> None:
    from monai.data import ThreadDataLoader as Monais
    from monai.transforms import Compose, Randomizable

    from hasten.cache.dataset import CacheDataset

    class Coin(Randomizable):
        def __call__(self, first: int) -> list[int]:
            return [number + 100 * int(self.R.random() < 0.5) for number in (first, first + 10)]

    for workers in (0, 2):
        results = []
        for kind in (ThreadDataLoader, Monais):
            dataset = CacheDataset(list(range(6)), Compose([Coin()]), progress=False)
            torch.manual_seed(3)
            results.append([batch.tolist() for batch in kind(dataset, batch_size=2, num_workers=workers)])
        assert results[0] == results[1]
        assert [len(batch) for batch in results[0]] == [4, 4, 4]
