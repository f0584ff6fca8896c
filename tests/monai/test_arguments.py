"""Arguments stand where they do in MONAI; a default of its data sets is accepted, or the error says why not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import monai.data
import monai.engines
import pytest
from monai.data.utils import json_hashing

import hasten

WORKFLOWS = ("SupervisedEvaluator", "SupervisedTrainer")
NAMES = ("CacheDataset", "PersistentDataset", "LMDBDataset", "SmartCacheDataset")
ELSEWHERE = {"data", "transform", "cache_dir", "num_workers", "num_init_workers", "num_replace_workers"}
"""Given by each test, or with other defaults here."""


def made(name: str, folder: Path, **given: Any) -> Any:
    places = {"cache_dir": folder} if name in ("PersistentDataset", "LMDBDataset") else {}
    rows = [{"value": index} for index in range(4)]
    return getattr(hasten, name)(rows, transform=[], **places, **given)


@pytest.mark.parametrize("name", NAMES)
def test_every_default_of_monais_is_accepted(name: str, tmp_path: Path) -> None:
    theirs = inspect.signature(getattr(monai.data, name)).parameters.values()
    given = {each.name: each.default for each in theirs if each.name not in ELSEWHERE}
    assert len(given) >= 5
    dataset = made(name, tmp_path, **given)
    assert sorted(dataset[index]["value"] for index in range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", [*NAMES, *WORKFLOWS])
def test_arguments_by_position_mean_what_they_mean_in_monai(name: str) -> None:
    place = monai.engines if name in WORKFLOWS else monai.data
    ours, theirs = (list(inspect.signature(getattr(each, name)).parameters.values()) for each in (hasten, place))
    assert all(each.default is not each.empty for each in ours[len(theirs) :])
    for one, other in zip(ours, theirs, strict=False):
        assert one.name == other.name
        assert name not in WORKFLOWS or (one.kind, one.default) == (other.kind, other.default)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("CacheDataset", {"runtime_cache": True}),
        ("CacheDataset", {"runtime_cache": "process"}),
        ("CacheDataset", {"hash_as_key": True}),
        ("CacheDataset", {"hash_func": lambda item: b"1"}),
        ("SmartCacheDataset", {"runtime_cache": True}),
        ("PersistentDataset", {"pickle_module": "dill"}),
        ("PersistentDataset", {"weights_only": False}),
        ("PersistentDataset", {"hash_func": lambda item: b"1"}),
        ("PersistentDataset", {"hash_transform": lambda item: b"1"}),
        ("LMDBDataset", {"hash_func": lambda item: b"1"}),
    ],
)
def test_what_is_not_done_is_refused_with_its_reason(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    (argument,) = given
    with pytest.raises(ValueError, match=rf"^{argument}=.*: has no effect here, as .+; leave it out$"):
        made(name, tmp_path, **given)


def test_monais_other_hash_covers_the_whole_item_as_well(tmp_path: Path) -> None:
    assert made("PersistentDataset", tmp_path, hash_func=json_hashing, hash_transform=json_hashing)[1]["value"] == 1
