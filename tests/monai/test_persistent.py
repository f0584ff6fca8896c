"""Nothing stale, nothing lost: files, parameters, code and damage."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose, Lambdad

from hasten.cache.publish import temporary_for
from hasten.cases.nifti import write_nifti
from hasten.monai.persistent import PersistentDataset
from tests.cache.items import AFFINE, Counted, chain, write_items


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.rec"))


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    return write_items(tmp_path / "files", 2)


def test_another_process_or_run_finds_what_was_kept(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    one = PersistentDataset(rows, chain(first), tmp_path / "cache")[0]
    two = PersistentDataset(rows, chain(second), tmp_path / "cache")[0]
    assert (first.calls, second.calls) == (["0"], [])
    assert torch.equal(one["image"], two["image"])
    assert torch.equal(one["image"].affine, two["image"].affine)
    assert len(files(tmp_path / "cache")) == 1


def test_a_changed_file_is_prepared_again(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    dataset = PersistentDataset(rows, chain(), tmp_path / "cache")
    before = dataset[0]["image"].clone()
    write_nifti(rows[0]["image"], np.full((6, 6, 6), 3.0, np.float32), AFFINE)
    assert not torch.equal(dataset[0]["image"], before)


def test_a_changed_transform_never_gets_what_another_made(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    one = PersistentDataset(rows, chain(low=0.0), tmp_path / "cache")[0]["image"]
    other = PersistentDataset(rows, chain(low=-1.0), tmp_path / "cache")[0]["image"]
    assert one.min() == 0
    assert other.min() == -1


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "pickle"])
def test_a_damaged_file_is_named_and_made_again(
    rows: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    before = PersistentDataset(rows, chain(), tmp_path / "cache")[0]
    (path,) = files(tmp_path / "cache")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-80]), "empty": b"", "pickle": b"\x80\x04N."}[how])
    with caplog.at_level(logging.WARNING):
        after = PersistentDataset(rows, chain(), tmp_path / "cache")[0]
    assert torch.equal(before["image"], after["image"])
    assert str(path) in caplog.text
    assert torch.equal(PersistentDataset(rows, chain(), tmp_path / "cache")[0]["image"], before["image"])


def test_what_cannot_be_kept_is_said_and_leaves_nothing(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    odd = Lambdad("id", lambda value: object())
    dataset = PersistentDataset(rows, Compose([*chain().transforms[:3], odd]), tmp_path / "cache")
    with pytest.raises(ValueError, match=r"item\['id'\]: a builtins\.object .*without pickle"):
        dataset[0]
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_was_writing_is_removed(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    own = temporary_for(folder / "a.rec")
    dead = own.with_name(own.name.replace(f".{os.getpid()}.", ".999999999."))
    hidden = folder / ".notes.2020.1.txt"
    for path in (own, dead, hidden):
        path.write_text("half")
    for path in (dead, hidden):
        os.utime(path, (0, 0))
    PersistentDataset(rows, chain(), folder)
    assert sorted(folder.iterdir()) == sorted([own, hidden])
