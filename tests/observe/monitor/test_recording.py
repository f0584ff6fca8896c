"""monitor.jsonl read back: whole, growing, damaged, and of a run that was resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.observe.monitor.recording import Follower, MonitorRecording
from tests.observe.monitor.series import series, start, write


def test_a_file_is_followed_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    follower = Follower(path)
    assert follower.poll() == []
    path.write_text('{"a": 1}\n{"a": 2')
    assert follower.poll() == [{"a": 1}]
    with path.open("a") as file:
        file.write('2}\nnonsense\n[3]\n\n\0\0\n{"a": 4}\n')
    assert follower.poll() == [{"a": 22}, {"a": 4}]
    assert follower.damaged == 2
    assert follower.poll() == []


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    follower = Follower(path)
    assert len(follower.poll()) == 2
    path.write_text('{"a": 3}\n')
    assert follower.poll() == [{"a": 3}]
    (tmp_path / "new").write_text('{"a": 4}\n{"a": 5}\n{"a": 6}\n')
    (tmp_path / "new").replace(path)
    assert [record["a"] for record in follower.poll()] == [4, 5, 6]


def test_a_recording_knows_what_was_said(tmp_path: Path) -> None:
    note = {"kind": "note", "text": "no driver"}
    path = write(tmp_path / "m.jsonl", series(5), before=[start(every=0.5), note, note], after=[{"kind": "new"}])
    recording = MonitorRecording(path)
    recording.poll()
    assert (recording.is_open, recording.every, recording.notes) == (True, 0.5, ["no driver"])
    assert list(recording.samples) == series(5)
    write(path, series(1, start=5), after=[{"kind": "stop"}])
    recording.poll()
    assert (recording.is_open, len(recording.samples), recording.damaged) == (False, 6, 0)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_short_is_skipped_and_counted(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "m.jsonl", series(5), before=[start()])
    path.write_bytes(path.read_bytes()[:-cut])
    recording = MonitorRecording(path)
    recording.poll()
    assert (len(recording.samples), recording.damaged) == (4, 0)  # it may still be written
    recording.poll(is_last=True)
    # Without its line end alone it is whole.
    assert (len(recording.samples), recording.damaged) == ((5, 0) if cut == 1 else (4, 1))


def test_a_run_that_goes_back_drops_what_is_done_again(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", series(100), before=[start()])  # killed: no stop
    write(path, series(60, start=80), before=[start()])
    recording = MonitorRecording(path)
    recording.poll()
    samples = list(recording.samples)
    assert [sample.time for sample in samples] == list(range(140))
    assert [sample.process for sample in samples] == [0] * 80 + [1] * 60
    assert recording.processes == 2
