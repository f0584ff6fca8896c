"""A fingerprint is taken once."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

import hasten.cache.fingerprint as module
from hasten.cache.fingerprint import get_fingerprint
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from hasten.prepare.fingerprint import take_fingerprint
from tests.cache.sets import write_case_set


@pytest.fixture
def case_set(tmp_path: Path) -> CaseSet:
    labels = {0: "background", **{value: str(value) for value in range(1, 13)}}  # as text, 10 comes before 2
    return write_case_set(tmp_path / "set", [(3, 4, 5), (2, 5, 6)], num_channels=2, labels=labels)


def file_in(cache: CacheConfig) -> Path:
    (path,) = (Path(str(cache.dir)) / "fingerprint").iterdir()
    return path


def test_a_second_run_reads_nothing(case_set: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get_fingerprint(case_set, cache)
    assert first == take_fingerprint(case_set)
    monkeypatch.setattr(module, "take_fingerprint", None)
    second = get_fingerprint(case_set, cache)
    assert second == first
    assert json.loads(file_in(cache).read_text())["body"]["num_cases"] == 2


def test_a_changed_file_is_looked_at_again(case_set: CaseSet, cache: CacheConfig) -> None:
    before = get_fingerprint(case_set, cache)
    write_case_set(case_set.source, [(6, 4, 5), (2, 5, 6)], num_channels=2, labels=case_set.labels)
    after = get_fingerprint(case_set, cache)
    assert (before.shapes[0], after.shapes[0]) == ((3, 4, 5), (6, 4, 5))


@pytest.mark.parametrize("harm", ["flip", "truncate", "other fields", "no object", "unreadable"])
def test_a_damaged_file_is_replaced_with_a_warning(
    case_set: CaseSet,
    cache: CacheConfig,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    harm: str,
) -> None:
    first = get_fingerprint(case_set, cache)
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
        assert get_fingerprint(case_set, cache) == first
    assert caplog.records[0].levelname == "WARNING"
    assert str(path) in caplog.text
    if harm == "unreadable":
        return
    assert len(caplog.records) == 1
    monkeypatch.setattr(module, "take_fingerprint", None)
    assert get_fingerprint(case_set, cache) == first


def test_without_a_cache_it_is_only_slower(
    case_set: CaseSet, cache: CacheConfig, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        found = get_fingerprint(case_set, replace(cache, dir=str(tmp_path / "file" / "cache")))
    assert found == take_fingerprint(case_set)
    assert "cache.dir" in caplog.text


def test_a_failed_write_leaves_no_file(
    case_set: CaseSet, cache: CacheConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        get_fingerprint(case_set, cache)
    assert "No space left" in caplog.text
    assert list((Path(str(cache.dir)) / "fingerprint").iterdir()) == []


def test_a_bad_data_set_is_an_error_and_leaves_nothing(tmp_path: Path, cache: CacheConfig) -> None:
    with pytest.raises(ValueError, match="NaN"):
        get_fingerprint(write_case_set(tmp_path / "bad", [(2, 3, 4)], nan_in=0), cache)
    assert not (Path(str(cache.dir)) / "fingerprint").exists()
