"""The settings of an LMDB file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.monai.persistent import LMDBDataset

pytest.importorskip("lmdb")


def test_info_and_the_settings_of_the_file(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"db_name": "tiles", "lmdb_kwargs": {"map_size": 80 * 2**20}}
    dataset = LMDBDataset([1, 2, 3], None, tmp_path, progress=True, **settings)
    info = dataset.info()
    assert info["size"] == 3
    assert info["last_txnid"] > 0
    assert Path(info["filename"]).name.startswith("tiles-")
    assert dataset[1] == 2
    dataset.close()
    assert list(dataset) == [1, 2, 3]


def test_a_file_without_room_grows(tmp_path: Path) -> None:
    data = [np.full((1, 64, 64, 4), number, np.float64) for number in range(12)]
    dataset = LMDBDataset(data, None, tmp_path, progress=False, lmdb_kwargs={"map_size": 2**20})
    assert all(np.array_equal(result, wanted) for result, wanted in zip(dataset, data, strict=True))
