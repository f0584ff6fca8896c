"""MONAI's arguments and attributes of `CacheDataset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import monai.data
import numpy as np
import pytest
import torch
from monai.transforms import Compose, Lambda, RandLambda, Randomizable

from hasten.cache import dataset
from hasten.cache.dataset import CacheDataset
from hasten.monai.persistent import LMDBDataset, PersistentDataset
from hasten.monai.smart import SmartCacheDataset


def add(number: int) -> Compose:
    return Compose([Lambda(lambda x: np.array([x + number])), RandLambda(lambda x: x * 10, prob=1.0)])


@pytest.mark.parametrize(("cache_num", "cache_rate"), [(100, 1.0), (4, 1.0), (100, 0.5), (3, 0.1), (0, 1.0)])
def test_cache_num_says_how_many_are_kept_as_in_monai(cache_num: int, cache_rate: float) -> None:
    data = [1, 2, 2, 3, 3, 3, 7]
    settings: dict[str, Any] = {
        "cache_num": cache_num,
        "cache_rate": cache_rate,
        "progress": False,
    }
    ours = CacheDataset(data, add(1), **settings)
    monais = monai.data.CacheDataset(data, add(1), **settings)
    assert (ours.cache_num, len(ours.cached)) == (monais.cache_num, len(monais._cache))
    assert [int(each) for each in ours] == [int(each) for each in monais] == [(each + 1) * 10 for each in data]
    ours.set_data([5, 5, 6])
    monais.set_data([5, 5, 6])
    assert ours.cache_num == monais.cache_num
    assert [int(each) for each in ours] == [60, 60, 70]


def test_the_transform_can_be_read_and_set(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    makers = [
        lambda chain: CacheDataset([1, 2], chain, progress=False),
        lambda chain: SmartCacheDataset([1, 2], chain, shuffle=False, progress=False),
        lambda chain: PersistentDataset([1, 2], chain, tmp_path / "files"),
        lambda chain: LMDBDataset([1, 2], chain, tmp_path / "lmdb", progress=False),
    ]
    for make in makers:
        first = add(1)
        dataset = make(first)
        assert isinstance(dataset.transform, Compose)
        assert dataset.transform.transforms == first.transforms
        assert [int(each) for each in dataset] == [20, 30]
        cached = getattr(dataset, "cached", None)
        dataset.transform = Compose([first.transforms[0], RandLambda(lambda x: x * 7, prob=1.0)])
        assert [int(each) for each in dataset] == [14, 21]
        assert getattr(dataset, "cached", None) is cached  # only the random part is another one
        dataset.transform = add(5)
        assert [int(each) for each in dataset] == [60, 70]


class Coin(Randomizable):
    def __call__(self, number: int) -> int:
        return number + 100 * int(self.R.random() < 0.5)


def draws(kind: Any, workers: int, **options: Any) -> list[int]:
    torch.manual_seed(3)
    dataset = kind(list(range(6)), Compose([Coin()]), **options)
    return [int(each) for each in monai.data.DataLoader(dataset, batch_size=1, num_workers=workers)]


@pytest.mark.parametrize("workers", [0, 2])
def test_monais_loader_seeds_its_transforms(workers: int, tmp_path: Path) -> None:
    """Workers would all draw alike otherwise."""
    wanted = draws(monai.data.CacheDataset, workers, progress=False)
    assert draws(CacheDataset, workers, progress=False) == wanted
    assert draws(PersistentDataset, workers, cache_dir=tmp_path) == wanted
    assert len({value >= 100 for value in wanted}) == 2


def test_what_interrupts_the_progress_bar_leaves_no_thread_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(steps: Iterable[Any], *_: Any, **__: Any) -> Iterator[Any]:
        yield next(iter(steps))
        raise KeyboardInterrupt

    monkeypatch.setattr(dataset, "with_progress", interrupted)
    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt) as caught:  # as a notebook does, it keeps the frames alive
        CacheDataset([1, 2, 3], Compose([Lambda(lambda item: item)]))
    now = torch.get_num_threads()
    torch.set_num_threads(1)
    assert caught
    assert now == 2
