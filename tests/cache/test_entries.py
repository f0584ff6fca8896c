from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cache.build import get_arena
from hasten.cache.entries import Entry, list_entries, prune, verify
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
    for path in (*(folder / "arena").iterdir(), *(folder / "sets").iterdir()):
        used = time.time() - 86400 * (4 - int(path.name[3]))
        for file in path.iterdir() if path.is_dir() else [path]:
            os.utime(file, (used, used))
    return folder


def names(folder: Path, kind: str) -> list[str]:
    return [entry.path.name[:4] for entry in list_entries(folder) if entry.kind == kind]


def entry_of(folder: Path, name: str, kind: str) -> Entry:
    (entry,) = (each for each in list_entries(folder) if each.kind == kind and each.path.name.startswith(name))
    return entry


def test_entries_are_listed_by_their_last_use_and_shards_once(three: Path) -> None:
    assert names(three, "set") == names(three, "arena") == ["set3", "set2", "set1"]
    assert [entry.num_cases for entry in list_entries(three) if entry.kind == "set"] == [3, 2, 1]
    assert [entry.num_cases for entry in list_entries(three) if entry.kind == "arena"] == [1, 1, 1]
    assert len(entry_of(three, "set3", "set").shards) == 3
    assert all(entry.source and entry.num_bytes > 0 for entry in list_entries(three))


def test_opening_is_a_use_of_all_that_a_set_needs(three: Path, small: CaseSet, cache: CacheConfig) -> None:
    get_arena(replace(small, name="set2", cases=small.cases[:2]), SPEC, cache)
    assert names(three, "set") == ["set2", "set3", "set1"]
    assert set(names(three, "arena")[:2]) == {"set1", "set2"}


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list_entries(tmp_path / "none") == []
    assert prune(tmp_path / "none", max_bytes=0) == []


def harm(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def test_no_shard_goes_that_a_kept_set_names(three: Path) -> None:
    assert prune(three) == []
    assert [entry.kind for entry in prune(three, unused_days=2.5)] == ["set"]
    assert (names(three, "set"), names(three, "arena")) == (["set3", "set2"], ["set3", "set2", "set1"])
    size = sum(entry.num_bytes for entry in list_entries(three))
    assert prune(three, max_bytes=size) == []
    assert [entry.path.name[:4] for entry in prune(three, max_bytes=size - 1)] == ["set2"]
    assert sorted(entry.kind for entry in prune(three, max_bytes=0)) == ["arena"] * 3 + ["set"]
    assert list_entries(three) == []


def test_shards_that_no_set_names_are_reclaimed(three: Path) -> None:
    entry_of(three, "set3", "set").path.unlink()
    assert [(entry.kind, entry.path.name[:4]) for entry in prune(three)] == [("arena", "set3")]
    for name in ("set1", "set2"):
        entry_of(three, name, "set").path.unlink()
    assert len(prune(three)) == 2


def test_shards_are_kept_beside_a_build_or_a_list_that_cannot_be_read(three: Path) -> None:
    listed = entry_of(three, "set3", "set").path
    with suppress(KeyboardInterrupt), building(three / "arena" / "new", listed.is_dir) as partial:
        content = listed.read_bytes()
        listed.unlink()
        assert partial is not None
        assert prune(three) == []
        listed.write_bytes(content)
        raise KeyboardInterrupt
    harm(listed)
    assert [entry.kind for entry in prune(three)] == ["unfinished"]
    assert {entry.path for entry, wrong in verify(three) if wrong} == {listed}


def test_damage_is_found_and_removed(three: Path, small: CaseSet, cache: CacheConfig) -> None:
    shard = entry_of(three, "set2", "arena").path
    harm(shard / "label.bin")
    wrong = {entry.path: message for entry, message in verify(three)}
    assert [path for path, message in wrong.items() if message] == [shard]
    assert "case case1 does not match" in wrong[shard]
    # With it the lists that name it, but none of their other cases.
    assert sorted((entry.kind, entry.path.name[:4]) for entry in prune(three, damaged=True)) == [
        ("arena", "set2"),
        ("set", "set2"),
        ("set", "set3"),
    ]
    assert names(three, "arena") == ["set3", "set1"]
    assert not any(message for _, message in verify(three))
    ticks: list[int] = []
    get_arena(replace(small, name="set3", cases=small.cases[:3]), SPEC, cache, tick=lambda done, _: ticks.append(done))
    assert ticks == [3]


def test_a_build_in_progress_is_left_alone_and_a_stopped_one_removed(three: Path) -> None:
    folder = three / "arena" / "new"
    with suppress(KeyboardInterrupt), building(folder, folder.exists) as partial:
        assert partial is not None
        (partial / "image.bin").write_bytes(b"1234")
        assert prune(three) == []
        raise KeyboardInterrupt
    assert "unfinished" in [entry.kind for entry in list_entries(three)]
    assert [entry.kind for entry in prune(three)] == ["unfinished"]
    assert len(list_entries(three)) == 6


def test_the_command_line(three: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["cache", *arguments, "--dir", str(three)])
        return result.exit_code, result.output

    code, listed = run("ls")
    assert code == 0
    assert listed.startswith("6 entries")
    assert "2 cases" in listed
    assert run("du")[1].split()[1] in ("B", "KiB")
    assert run("verify")[0] == 0
    (entry_of(three, "set3", "arena").path / "image.bin").write_bytes(b"")
    code, checked = run("verify")
    assert code == 1
    assert "damaged  set3" in checked
    code, gone = run("prune", "--damaged")
    assert code == 0
    assert "set3" in gone
    assert run("verify")[0] == 0
    assert run("prune", "--max-gib", "0")[1].count("removed") == 4
    result = CliRunner().invoke(app, ["cache", "ls", "--dir", str(three / "nowhere")])
    assert result.exit_code == 2
    assert "is not a folder" in result.output


def test_copies_of_remote_files_are_listed_and_pruned_by_server(tmp_path: Path) -> None:
    for name in ("s3/bucket/set/a.nii", "s3/bucket/set/.a.nii.fetched", "https/host/b.nii"):
        (tmp_path / "remote" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "remote" / name).write_bytes(bytes(100))
    os.utime(tmp_path / "remote/https/host/b.nii", (1e9, 1e9))
    servers = {entry.source: entry for entry in list_entries(tmp_path)}
    assert {source: entry.num_bytes for source, entry in servers.items()} == {"s3://bucket": 200, "https://host": 100}
    assert [entry.source for entry in prune(tmp_path, unused_days=30)] == ["https://host"]
    assert [entry.source for entry in list_entries(tmp_path)] == ["s3://bucket"]
