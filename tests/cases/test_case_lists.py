"""Lists of cases that were written on another system."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases import entries, locate
from hasten.cases.entries import Listing, batched, case_from_entry
from hasten.cases.locate import FileLocator, join
from hasten.cases.sources import read_csv_list, read_json_list


def from_csv(folder: Path, lines: list[str], end: str) -> Listing:
    path = folder / "list.csv"
    path.write_bytes(end.join(lines).encode())
    return read_csv_list(path, FileLocator(folder=folder))


def from_json(folder: Path, text: str) -> Listing:
    path = folder / "list.json"
    path.write_bytes(text.encode())
    return read_json_list(path, FileLocator(folder=folder))


def test_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    lines = ["\ufeffimage,label,split,fold", "a.png,a_mask.png,train,0", '"b, c.png",b_mask.png,val,1', ""]
    assert from_csv(tmp_path, lines, "\r\n") == from_csv(tmp_path, lines, "\n")
    tree = {"training": [{"image": f"{name}.png", "label": f"{name}_mask.png"} for name in "ab"]}
    text = json.dumps(tree, indent=1)
    assert from_json(tmp_path, text.replace("\n", "\r\n")) == from_json(tmp_path, text)


@pytest.mark.parametrize("name", [r"C:\data\a.png", "C:/data/a.png", r"images\a.png", r"\\server\share\a.png"])
def test_a_path_of_windows_is_named_as_such(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"list\.csv: line 2: .* is written as on Windows"):
        from_csv(tmp_path, ["image,label", f"{name},b.png"], "\n")
    with pytest.raises(ValueError, match=r"list\.json: training\[0\]: .* is written as on Windows"):
        from_json(tmp_path, json.dumps({"training": [{"image": name, "label": "b.png"}]}))
    with pytest.raises(ValueError, match="leads out of"):
        join("https://server/set", name.replace("images", "C:"), "list.csv")


def test_a_file_of_that_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / r"a\b.png").touch()
    entry = case_from_entry({"id": "a", "image": r"a\b.png", "label": r"a\b.png"}, FileLocator(folder=tmp_path), "here")
    assert entry is not None
    assert entry.case.image == (tmp_path / r"a\b.png",)


def test_windows_takes_its_own_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "os", SimpleNamespace(name="nt"))
    path = FileLocator(folder=tmp_path).find("C:/data/a.png", "here")
    assert path == tmp_path / "C:/data/a.png"  # on Windows `/` takes the drive instead


@pytest.mark.parametrize("case_id", ["a:b", "a?", "a*", 'a"', "a|b", "<a>", "a.", "a "])
def test_ids_that_windows_takes_for_no_file_name(tmp_path: Path, case_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"id": case_id, "image": "a.png", "label": "b.png"}
    assert case_from_entry(entry, FileLocator(folder=tmp_path), "here") is not None
    monkeypatch.setattr(entries, "os", SimpleNamespace(name="nt"))
    with pytest.raises(ValueError, match="can't be a file name"):
        case_from_entry(entry, FileLocator(folder=tmp_path), "here")


@given(count=st.integers(0, 5000), num_threads=st.integers(1, 64))
def test_every_item_is_in_one_batch_and_every_thread_has_some(count: int, num_threads: int) -> None:
    batches = batched(range(count), num_threads)
    assert list(chain.from_iterable(batches)) == list(range(count))
    assert len(batches) >= min(count, num_threads)
    assert all(0 < len(batch) <= 256 for batch in batches)
