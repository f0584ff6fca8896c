from __future__ import annotations

import random
from pathlib import Path

import pytest

from hasten.cache.build import JOURNAL, append_entry, recover_entries
from hasten.cache.file import IMAGE, LABEL, POINTS, CaseEntry, checksum
from hasten.cases.types import CaseSet
from tests.cache.sets import shard_of

IDS = ["a", "b", "c"]


def write(folder: Path, *, whole: int = 3) -> list[CaseEntry]:
    """Three cases of 2 bytes a voxel, of which `whole` are in the journal."""
    folder.mkdir()
    entries = []
    with (folder / JOURNAL).open("wb") as journal:
        for number, name in enumerate(IDS):
            voxels = 4 + number
            image, label, points = bytes([number] * 2 * voxels), bytes([1] * voxels), bytes(4 * number)
            for file, data in ((IMAGE, image), (LABEL, label), (POINTS, points)):
                with (folder / file).open("ab") as stream:
                    stream.write(data)
            entry = CaseEntry(
                id=name,
                shape=(1, 1, voxels),
                num_points=(number,),
                num_voxels=(number,),
                image_crc=checksum(image),
                label_crc=checksum(label),
                geometry={},
            )
            if number < whole:
                append_entry(journal, entry)
            entries.append(entry)
    return entries


def sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size for name in (IMAGE, LABEL, POINTS)]


@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_what_is_noted_is_found_and_the_rest_cut_off(tmp_path: Path, whole: int) -> None:
    entries = write(tmp_path / "build", whole=whole)
    assert recover_entries(tmp_path / "build", IDS, 2) == entries[:whole]
    voxels = sum(4 + number for number in range(whole))
    assert sizes(tmp_path / "build") == [2 * voxels, voxels, 4 * sum(range(whole))]
    assert recover_entries(tmp_path / "build", IDS, 2) == entries[:whole]


def test_an_empty_folder_gets_empty_files(tmp_path: Path) -> None:
    assert recover_entries(tmp_path, IDS, 2) == []
    assert sizes(tmp_path) == [0, 0, 0]


@pytest.mark.parametrize("name", [IMAGE, LABEL, JOURNAL])
def test_a_flipped_byte_ends_what_is_trusted(tmp_path: Path, name: str) -> None:
    entries = write(tmp_path / "build")
    draw = random.Random(1)
    for _ in range(20):
        path = tmp_path / "build" / name
        before = {each: (tmp_path / "build" / each).read_bytes() for each in (IMAGE, LABEL, POINTS, JOURNAL)}
        data = bytearray(before[name])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        result = recover_entries(tmp_path / "build", IDS, 2)
        assert result == entries[: len(result)]
        assert len(result) < 3
        for each, content in before.items():
            (tmp_path / "build" / each).write_bytes(content)


def test_a_half_written_line_is_not_a_case(tmp_path: Path) -> None:
    entries = write(tmp_path / "build")
    journal = tmp_path / "build" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-5])
    assert recover_entries(tmp_path / "build", IDS, 2) == entries[:2]


def test_cases_of_another_list_are_not_taken(tmp_path: Path) -> None:
    entries = write(tmp_path / "build")
    assert recover_entries(tmp_path / "build", ["a", "other", "c"], 2) == entries[:1]


def test_a_finished_entry_holds_no_journal(small: CaseSet, tmp_path: Path) -> None:
    assert not (shard_of(small, tmp_path) / JOURNAL).exists()
