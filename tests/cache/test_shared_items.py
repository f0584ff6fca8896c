from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hasten.cache.dataset import CacheDataset
from hasten.cache.item_bytes import SharedItem

SIDE = 64


@pytest.fixture(autouse=True, params=[1 << 24, 1 << 10], ids=["read", "mapped"])
def mapped_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.cache.item_bytes._MAPPED_BYTES", request.param)


def item(number: int) -> dict[str, Any]:
    return {"id": number, "image": torch.full((1, SIDE, SIDE, SIDE), float(number)), "label": np.ones(7, np.uint8)}


class Make:
    deterministic = True

    def __call__(self, number: int) -> dict[str, Any]:
        return item(number)


def filled(count: int) -> CacheDataset:
    return CacheDataset(list(range(count)), Make(), progress=False)


def test_an_item_may_be_changed_and_nobody_else_sees_it() -> None:
    dataset = filled(3)
    assert all(isinstance(kept, SharedItem) for kept in dataset.cached)
    one = dataset[2]
    one["image"].mul_(10)
    one["label"][0] = 9
    assert (one["image"] == 20).all()
    assert (dataset[2]["image"] == 2).all()
    assert dataset[2]["label"][0] == 1
    assert (dataset[1]["image"] == 1).all()


def test_items_held_at_once_keep_no_file_open() -> None:
    dataset = filled(2)
    before = psutil.Process().num_fds()
    held = [dataset[number % 2] for number in range(300)]
    assert psutil.Process().num_fds() <= before + 2
    assert (held[-1]["image"] == 1).all()


def read(dataset: CacheDataset, answer: Any) -> None:
    torch.set_num_threads(1)  # as loaders do: threads of OpenMP do not survive a fork
    total = sum(float(dataset[number]["image"].sum()) for number in range(len(dataset)))
    dataset[0]["image"].add_(1)
    answer.put(total)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_read_the_same_memory(method: str) -> None:
    dataset = filled(3)
    context: Any = multiprocessing.get_context(method)
    answer = context.Queue()
    process = context.Process(target=read, args=(dataset, answer))
    process.start()
    total = answer.get(timeout=600)
    process.join(60)
    assert total == 3 * SIDE**3
    assert (dataset[0]["image"] == 0).all()
