from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hasten.cache.build import get_arena
from hasten.cache.entries import Entry, list_entries, prune
from hasten.cache.publish import building
from hasten.cases.types import CaseSet
from hasten.cli.main import app
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC


@pytest.fixture
def three(small: CaseSet, cache: CacheConfig) -> Path:
    """Sets of 1, 2 and 3 cases, used 3, 2 and 1 days ago. Each lacked a case, so that there are three shards."""
    folder = Path(str(cache.dir))
    for count in (1, 2, 3):
        get_arena(replace(small, name=f"set{count}", cases=small.cases[:count]), SPEC, cache)
    for path in (folder / "arena").iterdir():
        used = time.time() - 86400 * (4 - int(path.name[3]))
        for file in path.iterdir():
            os.utime(file, (used, used))
    return folder


def names(folder: Path) -> list[str]:
    return [entry.path.name[:4] for entry in list_entries(folder) if entry.kind == "arena"]


def test_shards_are_listed_by_their_last_use(three: Path, small: CaseSet, cache: CacheConfig) -> None:
    assert names(three) == ["set3", "set2", "set1"]
    assert all(entry.num_bytes > 0 for entry in list_entries(three))
    get_arena(replace(small, name="set2", cases=small.cases[:2]), SPEC, cache)
    assert set(names(three)[:2]) == {"set1", "set2"}


def test_what_was_not_used_for_longest_goes(three: Path) -> None:
    assert prune(three) == []
    assert [entry.path.name[:4] for entry in prune(three, unused_days=2.5)] == ["set1"]
    size = sum(entry.num_bytes for entry in list_entries(three))
    assert prune(three, max_bytes=size) == []
    assert [entry.path.name[:4] for entry in prune(three, max_bytes=size - 1)] == ["set2"]
    assert len(prune(three, max_bytes=0)) == 1
    assert list_entries(three) == []


def test_a_build_in_progress_is_left_alone_and_a_stopped_one_removed(three: Path) -> None:
    folder = three / "arena" / "new"
    with building(folder, folder.exists) as partial:
        assert partial is not None
        (partial / "image.bin").write_bytes(b"1234")
        assert prune(three) == []
    folder.rename(partial)  # as a killed build leaves it
    assert [entry.kind for entry in prune(three)] == ["unfinished"]
    assert len(list_entries(three)) == 3


def test_locks_that_nobody_holds_go_and_what_was_published_meanwhile_is_not_counted(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, folder = three / "arena" / ".new.partial", three / "arena" / "held"
    (three / "arena" / ".killed.lock").touch()
    listed = [*list_entries(three), Entry(path=partial, kind="unfinished", num_bytes=4, used=0.0)]
    monkeypatch.setattr("hasten.cache.entries.list_entries", lambda _: listed)
    with building(folder, folder.exists):
        assert prune(three) == []
        assert [path.name for path in (three / "arena").glob(".*.lock")] == [".held.lock"]
    assert list((three / "arena").glob(".*")) == []


def test_an_entry_that_is_published_while_it_is_listed(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, rglob = three / "arena" / ".new.partial", Path.rglob
    partial.mkdir()
    gone = SimpleNamespace(is_file=lambda: True, stat=(partial / "image.bin").stat)
    monkeypatch.setattr(Path, "rglob", lambda path, text: [gone] if path == partial else rglob(path, text))
    assert names(three) == ["set3", "set2", "set1"]


def test_the_command_line(three: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["cache", *arguments, "--dir", str(three)])
        return result.exit_code, result.output

    code, listed = run("ls")
    assert code == 0
    assert listed.startswith("3 entries")
    assert run("prune", "--max-gib", "0")[1].count("removed") == 3
    result = CliRunner().invoke(app, ["cache", "ls", "--dir", str(three / "nowhere")])
    assert result.exit_code == 2
    assert "is not a folder" in result.output


def test_copies_of_remote_files_are_listed_and_pruned_by_server(tmp_path: Path) -> None:
    for name in ("s3/bucket/set/a.nii", "s3/bucket/set/.a.nii.fetched", "https/host/b.nii"):
        (tmp_path / "remote" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "remote" / name).write_bytes(bytes(100))
    os.utime(tmp_path / "remote/https/host/b.nii", (1e9, 1e9))
    assert {entry.path.name: entry.num_bytes for entry in list_entries(tmp_path)} == {"bucket": 200, "host": 100}
    assert [entry.path.name for entry in prune(tmp_path, unused_days=30)] == ["host"]
    assert [entry.path.name for entry in list_entries(tmp_path)] == ["bucket"]
