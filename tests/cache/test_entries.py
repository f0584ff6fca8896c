from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cache.build import get_arena
from hasten.cache.entries import list_entries, prune, verify
from hasten.cache.turns import building
from hasten.cases.types import CaseSet
from hasten.cli.main import app
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC


@pytest.fixture
def three(small: CaseSet, cache: CacheConfig) -> Path:
    """Entries of 1, 2 and 3 cases, used 3, 2 and 1 days ago."""
    folder = Path(str(cache.dir))
    for count in (1, 2, 3):
        get_arena(replace(small, name=f"set{count}", cases=small.cases[:count]), SPEC, cache)
    for path in (folder / "arena").iterdir():
        used = time.time() - 86400 * (4 - int(path.name[3]))
        for file in path.iterdir():
            os.utime(file, (used, used))
    return folder


def names(folder: Path) -> list[str]:
    return [entry.path.name[:4] for entry in list_entries(folder)]


def test_entries_are_listed_by_their_last_use(three: Path) -> None:
    assert names(three) == ["set3", "set2", "set1"]
    assert [entry.num_cases for entry in list_entries(three)] == [3, 2, 1]
    assert all(entry.source and entry.num_bytes > 0 for entry in list_entries(three))


def test_opening_is_a_use(three: Path, small: CaseSet, cache: CacheConfig) -> None:
    get_arena(replace(small, name="set1", cases=small.cases[:1]), SPEC, cache)
    assert names(three) == ["set1", "set3", "set2"]


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_entries(tmp_path / "none") == []
    assert prune(tmp_path / "none", max_bytes=0) == []


def test_prune_by_time_size_and_damage(three: Path) -> None:
    assert prune(three) == []
    assert [entry.num_cases for entry in prune(three, unused_days=2.5)] == [1]
    newest = list_entries(three)[0]
    damaged = list_entries(three)[1].path / "label.bin"
    data = bytearray(damaged.read_bytes())
    data[0] ^= 1
    damaged.write_bytes(data)
    wrong = {entry.path.name[:4]: told for entry, told in verify(three)}
    assert wrong["set3"] == ""
    assert "case case0 does not match" in wrong["set2"]
    assert [entry.num_cases for entry in prune(three, damaged=True)] == [2]
    assert prune(three, max_bytes=newest.num_bytes) == []
    assert [entry.num_cases for entry in prune(three, max_bytes=newest.num_bytes - 1)] == [3]
    assert list_entries(three) == []


def test_a_build_in_progress_is_left_alone_and_a_stopped_one_removed(three: Path) -> None:
    folder = three / "arena" / "new"
    with suppress(KeyboardInterrupt), building(folder, folder.exists) as partial:
        assert partial is not None
        (partial / "image.bin").write_bytes(b"1234")
        assert prune(three) == []
        raise KeyboardInterrupt
    assert "unfinished" in [entry.kind for entry in list_entries(three)]
    assert [entry.kind for entry in prune(three)] == ["unfinished"]
    assert len(list_entries(three)) == 3


def test_the_command_line(three: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["cache", *arguments, "--dir", str(three)])
        return found.exit_code, found.output

    code, listed = run("ls")
    assert code == 0
    assert listed.startswith("3 entries")
    assert "2 cases" in listed
    assert run("du")[1].split()[1] in ("B", "KiB")
    assert run("verify")[0] == 0
    (list_entries(three)[0].path / "image.bin").write_bytes(b"")
    code, checked = run("verify")
    assert code == 1
    assert "damaged  set3" in checked
    code, gone = run("prune", "--damaged")
    assert code == 0
    assert "set3" in gone
    assert run("prune", "--max-gib", "0")[1].count("removed") == 2
    found = CliRunner().invoke(app, ["cache", "ls", "--dir", str(three / "nowhere")])
    assert found.exit_code == 2
    assert "is no folder" in found.output


def test_copies_of_remote_files_are_listed_and_pruned_by_server(tmp_path: Path) -> None:
    for name in ("s3/bucket/set/a.nii", "s3/bucket/set/.a.nii.fetched", "https/host/b.nii"):
        (tmp_path / "remote" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "remote" / name).write_bytes(bytes(100))
    os.utime(tmp_path / "remote/https/host/b.nii", (1e9, 1e9))
    found = {entry.source: entry for entry in list_entries(tmp_path)}
    assert {source: entry.num_bytes for source, entry in found.items()} == {"s3://bucket": 200, "https://host": 100}
    assert [entry.source for entry in prune(tmp_path, unused_days=30)] == ["https://host"]
    assert [entry.source for entry in list_entries(tmp_path)] == ["s3://bucket"]
