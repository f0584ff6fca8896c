from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hasten.observe import rundir
from hasten.observe.rundir import append_jsonl, create_run_dir, read_jsonl, write_json


def test_names_that_are_no_utf_8_are_written_and_read_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"zell\xe4.png")
    write_json(tmp_path / "plan.json", {name: "\u00e4"})
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")) == {name: "\u00e4"}
    append_jsonl(tmp_path / "lines.jsonl", {"file": name})
    assert read_jsonl(tmp_path / "lines.jsonl") == [{"file": name}]


def test_a_directory_in_use_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("kept")
    with pytest.raises(ValueError, match=r"is not empty; add --resume .* another --out") as raised:
        create_run_dir(tmp_path, resume=False)
    assert str(tmp_path) in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious.txt"]


def test_resume_needs_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=r"holds no run to resume \(run.yaml is missing\)"):
            create_run_dir(path, resume=True)
    assert not (tmp_path / "none").exists()
    (tmp_path / rundir.RUN_YAML).write_text("")
    assert create_run_dir(tmp_path, resume=True) == tmp_path


def test_a_file_and_an_unwritable_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        create_run_dir(tmp_path / "file", resume=False)
    with pytest.raises(ValueError, match="cannot be written to"):
        create_run_dir(tmp_path / "file" / "below", resume=False)

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(ValueError, match=r"cannot be written to \(No space left on device\)"):
        create_run_dir(tmp_path / "new", resume=False)


@dataclass
class Pair:
    path: Path
    values: tuple[float, ...]


def test_write_json_takes_what_a_run_knows(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(
        path, {"nan": float("nan"), 3: np.float32(0.5), "a": np.arange(2), "pair": Pair(Path("p"), (1.0, np.inf))}
    )
    assert json.loads(path.read_text()) == {
        "nan": None,
        "3": 0.5,
        "a": [0, 1],
        "pair": {"path": "p", "values": [1.0, None]},
    }
    with pytest.raises(TypeError, match="has no form in JSON"):
        write_json(path, {"bad": object()})


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})

    def fail(handle: int) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_jsonl_reads_back_and_skips_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / rundir.METRICS_JSONL
    assert read_jsonl(path) == []
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "case": "ä\u2028b"}, {"step": 3}]
    for record in records:
        append_jsonl(path, record)
    assert read_jsonl(path) == records
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = read_jsonl(path)
        assert kept == records[: len(kept)]
        assert len(kept) >= whole[:cut].count(b"\n")


def test_append_repairs_what_an_interrupted_write_left(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    append_jsonl(path, {"step": 2})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl:2: not a line of JSON"):
        read_jsonl(path)
