"""A fingerprint is taken once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hasten.cache.fingerprint as module
from hasten.cache.fingerprint import find_cached_source, get_case_set, get_fingerprint
from hasten.cases.sources import find_listing, load_case_set
from hasten.cases.types import CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig
from hasten.prepare.fingerprint import take_fingerprint
from tests.cache.sets import listing_of, write_case_set


@pytest.fixture
def case_set(tmp_path: Path) -> CaseSet:
    labels = {0: "background", **{value: str(value) for value in range(1, 13)}}  # as text, 10 comes before 2
    return write_case_set(tmp_path / "set", [(3, 4, 5), (2, 5, 6)], num_channels=2, labels=labels)


def file_in(cache: CacheConfig) -> Path:
    (path,) = (Path(str(cache.dir)) / "fingerprint").iterdir()
    return path


def fingerprint(case_set: CaseSet, cache: CacheConfig) -> Fingerprint:
    return get_fingerprint(case_set, find_cached_source(listing_of(case_set), cache))


@pytest.mark.parametrize("harm", ["flip", "truncate", "other fields", "no object", "unreadable"])
def test_a_damaged_file_is_replaced_with_a_warning(
    case_set: CaseSet,
    cache: CacheConfig,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
) -> None:
    first = fingerprint(case_set, cache)
    path = file_in(cache)
    match harm:
        case "flip":
            path.write_text(path.read_text().replace('"num_cases": 2', '"num_cases": 3'))
        case "truncate":
            path.write_bytes(path.read_bytes()[:50])
        case "other fields":  # an unchanged file of another version of the program
            module.write_checked(path, {"name": "x"})
        case "no object":
            path.write_text("[]")
        case "unreadable":
            path.unlink()
            path.mkdir()
    with caplog.at_level(logging.WARNING):
        assert fingerprint(case_set, cache) == first
    assert caplog.records[0].levelname == "WARNING"
    assert str(path) in caplog.text
    if harm == "unreadable":
        return
    assert len(caplog.records) == 1
    monkeypatch.setattr(module, "take_fingerprint", None)
    assert fingerprint(case_set, cache) == first


def test_a_bad_data_set_is_an_error_and_leaves_nothing(tmp_path: Path, cache: CacheConfig) -> None:
    with pytest.raises(ValueError, match="NaN"):
        fingerprint(write_case_set(tmp_path / "bad", [(2, 3, 4)], nan_in=0), cache)
    assert not (Path(str(cache.dir)) / "fingerprint").exists()


def tiles(folder: Path, values: Sequence[int]) -> Path:
    """Pictures whose label maps hold one value each; what they hold is declared nowhere."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, value in enumerate(values):
        tile(folder / "images" / f"{number}.png", 40 + number)
        tile(folder / "labels" / f"{number}.png", value)
    return folder


def tile(path: Path, value: int) -> None:
    Image.fromarray(np.full((6, 8), value, np.uint8)).save(path)


def start(folder: Path, cache: CacheConfig) -> tuple[CaseSet, Fingerprint]:
    listing = find_listing(folder)
    kept = find_cached_source(listing, cache)
    case_set = get_case_set(listing, None, kept)
    return case_set, get_fingerprint(case_set, kept)


def test_a_second_start_opens_no_image(tmp_path: Path, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiles(tmp_path / "set", [0, 1, 3])
    first = start(folder, cache)
    assert first[0] == load_case_set(folder)
    assert first[0].labels == {0: "background", 1: "class_1", 3: "class_2"}

    def refuse(path: object, *_: object, **__: object) -> None:
        raise AssertionError(f"{path} is opened")

    monkeypatch.setattr(Image, "open", refuse)
    assert start(folder, cache) == first


def later(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def other_value(folder: Path) -> None:
    tile(folder / "labels" / "0.png", 7)
    later(folder / "labels" / "0.png")


def other_size(folder: Path) -> None:
    for path in (folder / "images" / "0.png", folder / "labels" / "0.png"):
        status = path.stat()
        Image.fromarray(np.zeros((60, 80), np.uint8)).save(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def one_more(folder: Path) -> None:
    tile(folder / "images" / "9.png", 1)
    tile(folder / "labels" / "9.png", 9)


def one_less(folder: Path) -> None:
    (folder / "images" / "2.png").unlink()
    (folder / "labels" / "2.png").unlink()


def declared(folder: Path) -> None:
    (folder / "labels.json").write_text('{"0": "background", "1": "one", "3": "three"}')


@pytest.mark.parametrize("change", [other_value, other_size, one_more, one_less, declared])
def test_a_second_start_notices(tmp_path: Path, cache: CacheConfig, change: Callable[[Path], None]) -> None:
    folder = tiles(tmp_path / "set", [0, 1, 3])
    before = start(folder, cache)
    change(folder)
    after = start(folder, cache)
    assert after != before
    assert after == (load_case_set(folder), take_fingerprint(load_case_set(folder)))


def test_a_wrong_number_of_dimensions_is_told_at_every_start(tmp_path: Path, cache: CacheConfig) -> None:
    listing = find_listing(tiles(tmp_path / "set", [0, 1]))
    start(listing.source, cache)
    with pytest.raises(ValueError, match=r"0\.png: is a 2-D image .* data\.spatial_dims is 3"):
        get_case_set(listing, 3, find_cached_source(listing, cache))
