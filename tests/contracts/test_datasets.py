"""What every cached data set has to do: the items of the plain chain, made once, named when they fail."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.data import Dataset as MonaiDataset
from torch.utils.data import DataLoader

from hasten.cache.dataset import CacheDataset, ChainDataset
from hasten.monai.persistent import LMDBDataset, PersistentDataset
from hasten.monai.smart import SmartCacheDataset
from tests.cache.items import Counted, assert_items_equal, chain, write_items

Make = Callable[[list[dict[str, Any]], Any, Path], ChainDataset]
KINDS: dict[str, Make] = {
    "cache": lambda data, transform, _: CacheDataset(data, transform, progress=False),
    "half cached": lambda data, transform, _: CacheDataset(data, transform, cache_rate=0.5, progress=False),
    "persistent": PersistentDataset,
    "lmdb": LMDBDataset,
    "smart": lambda data, transform, _: SmartCacheDataset(data, transform, shuffle=False, progress=False),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "lmdb":
        pytest.importorskip("lmdb")
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Make:
    return KINDS[kind]


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return write_items(tmp_path / "files", 4)


def test_items_are_those_of_the_plain_chain(make: Make, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    plain = MonaiDataset(rows, chain(flip=1.0))
    dataset = make(rows, chain(flip=1.0), tmp_path / "cache")
    assert len(dataset) == 4
    for _ in range(2):
        for number in range(4):
            assert_items_equal(dataset[number], plain[number])
    assert_items_equal(dataset[-1], plain[3])
    with pytest.raises(IndexError):
        dataset[4]


def test_the_deterministic_part_runs_once(make: Make, kind: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    counted = Counted()
    dataset = make(rows, chain(counted), tmp_path / "cache")
    for _ in range(3):
        for number in range(4):
            dataset[number]
    times = {number: counted.calls.count(str(number)) for number in range(4)}
    assert times == ({0: 1, 1: 1, 2: 3, 3: 3} if kind == "half cached" else dict.fromkeys(range(4), 1))


def test_changing_an_item_changes_nothing_kept(make: Make, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    dataset = make(rows, chain(), tmp_path / "cache")
    before = dataset[0]["image"].clone()
    item = dataset[0]
    item["image"] += 7
    item["image"].meta["mine"] = 1
    item["new"] = 1
    assert torch.equal(dataset[0]["image"], before)
    assert "mine" not in dataset[0]["image"].meta
    assert "new" not in dataset[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_collates_them(make: Make, rows: list[dict[str, Any]], tmp_path: Path, workers: int) -> None:
    dataset = make(rows, chain(), tmp_path / "cache")
    loader = DataLoader(dataset, batch_size=2, num_workers=workers)
    for _ in range(2):
        batches = list(loader)
        assert [batch["image"].shape for batch in batches] == [(2, 1, 6, 6, 6)] * 2
        assert [batch["id"].tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_a_spawned_process_reads_them(make: Make, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    dataset = make(rows, chain(), tmp_path / "cache")
    again = pickle.loads(pickle.dumps(dataset))
    assert_items_equal(again[1], dataset[1])


def test_a_failing_item_is_named_with_its_files(make: Make, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    Path(rows[2]["image"]).write_bytes(b"no image")
    with pytest.raises(RuntimeError, match=r"item 2 \(image=.*i2\.nii, label=.*l2\.nii\) of \w+ failed: "):
        make(rows, chain(), tmp_path / "cache")[2]
