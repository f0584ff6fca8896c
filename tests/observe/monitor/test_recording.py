"""monitor.jsonl read back: whole, growing, damaged, and of a run that was resumed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from hasten.observe.monitor.recording import Follower, History, MonitorRecording, rank_name, recordings
from hasten.observe.monitor.sample import Sample, to_record
from tests.observe.monitor.series import series, start, write


def test_ranks_are_told_by_their_files(tmp_path: Path) -> None:
    assert recordings(tmp_path) == {}
    for name in ("monitor.jsonl", "monitor-rank11.jsonl", "monitor-rank2.jsonl", "monitor-rankx.jsonl", "monitor.csv"):
        (tmp_path / name).touch()
    assert {rank: path.name for rank, path in recordings(tmp_path).items()} == {
        rank: rank_name("monitor.jsonl", rank) for rank in (0, 2, 11)
    }
    assert rank_name("monitor.csv", 3) == "monitor-rank3.csv"


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
    assert recording.history.samples() == series(5)
    write(path, series(1, start=5), after=[{"kind": "stop"}])
    recording.poll()
    assert (recording.is_open, len(recording.history), recording.damaged) == (False, 6, 0)


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_short_is_skipped_and_counted(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "m.jsonl", series(5), before=[start()])
    path.write_bytes(path.read_bytes()[:-cut])
    recording = MonitorRecording(path)
    recording.poll()
    assert (len(recording.history), recording.damaged) == (4, 0)  # it may still be written
    recording.poll(is_last=True)
    # Without its line end alone it is whole.
    assert (len(recording.history), recording.damaged) == ((5, 0) if cut == 1 else (4, 1))


def test_records_that_are_no_samples_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", series(2), after=[{"kind": "sample"}, {"kind": "sample", "time": "soon"}])
    path.write_bytes(path.read_bytes() + b"\xff\xfe{}\n[[[[\n")
    recording = MonitorRecording(path)
    recording.poll()
    assert (len(recording.history), recording.damaged) == (2, 4)


def test_a_run_that_goes_back_drops_what_is_done_again(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", series(100), before=[start()])  # killed: no stop
    write(path, series(60, start=80), before=[start()])
    recording = MonitorRecording(path)
    recording.poll()
    samples = recording.history.samples()
    assert [sample.time for sample in samples] == list(range(140))
    assert [sample.process for sample in samples] == [0] * 80 + [1] * 60
    assert recording.processes == 2


def test_a_long_history_keeps_its_end_whole_and_its_beginning_in_part() -> None:
    history = History(400, recent=100)
    for sample in series(10_000):
        history.add(sample)
        assert len(history) <= 400
    times = [sample.time for sample in history.samples()]
    assert times == sorted(times)
    assert times[-100:] == list(range(9900, 10_000))
    gaps = {later - earlier for earlier, later in pairwise(times)}
    assert times[0] == 0
    assert max(gaps) <= 128


def test_what_is_written_is_json_that_anyone_reads() -> None:
    record = json.loads(json.dumps(to_record(Sample(time=1.23456, step=3))))
    assert record == {"kind": "sample", "time": 1.235, "step": 3, "host": {}}
