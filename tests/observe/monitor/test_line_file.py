"""Files that grow by whole lines, whatever ends the writing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hasten.observe.monitor.recording import LineFile


def test_the_header_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for number in range(2):
        file = LineFile(path, header="x,y")
        assert file.first_line() == "x,y"
        file.write(f"{number},1\n")
        file.close()
        file.close()
    assert path.read_text() == "x,y\n0,1\n1,1\n"


@pytest.mark.parametrize("half", ["", "x", "x,y", "x,y\n1,1\n2,"])
def test_half_a_line_at_the_end_is_cut(tmp_path: Path, half: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(half)
    file = LineFile(path, header="x,y")
    file.write("3,3\n")
    file.close()
    assert path.read_text() == ("x,y\n1,1\n3,3\n" if "\n" in half else "x,y\n3,3\n")


def test_a_header_of_another_version_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time,b\n1,2\n")
    assert LineFile(path, header="x,y").first_line() == "time,b"


def test_a_write_that_the_disk_takes_in_part_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    file = LineFile(path, header="x,y")
    file.write("1,1\n")
    whole = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: whole(handle, data[:2]))
    with pytest.raises(OSError) as raised:
        file.write("2,2\n")
    assert raised.value.errno == errno.ENOSPC
    monkeypatch.undo()
    file.write("3,3\n")
    assert path.read_text() == "x,y\n1,1\n3,3\n"


def test_a_folder_that_is_missing_raises_until_it_is_there(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "new" / "a.jsonl")
    with pytest.raises(OSError):
        file.write("1\n")
    (tmp_path / "new").mkdir()
    file.write("2\n")
    assert (tmp_path / "new" / "a.jsonl").read_text() == "2\n"
