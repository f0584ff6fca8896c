"""monitor.jsonl read back: whole, damaged, its end alone, and of a run that was resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.observe.monitor.alerts import alerts_of_ranks
from hasten.observe.monitor.recording import (
    Gpu,
    Host,
    Sample,
    from_record,
    read_recording,
    read_records,
    recordings,
    to_record,
)
from tests.observe.monitor.series import series, start, write


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert read_records(path) == ([], 0)
    path.write_text('{"a": 1}\nnonsense\n[3]\n\n\0\0\n{"a": 4}\n{"a": 5}')
    assert read_records(path) == ([{"a": 1}, {"a": 4}, {"a": 5}], 2)
    assert read_records(path, tail=20) == ([{"a": 4}, {"a": 5}], 0)
    assert read_records(path, tail=1000)[1] == 2


def test_a_recording_knows_what_was_said(tmp_path: Path) -> None:
    note = {"kind": "note", "text": "no driver"}
    path = write(tmp_path / "monitor-rank3.jsonl", series(5), before=[start(), note, note], after=[{"kind": "new"}])
    (recording,) = recordings(tmp_path)
    assert (recording.path, recording.rank, recording.is_open, recording.notes) == (path, 3, True, ("no driver",))
    assert list(recording.samples) == series(5)
    write(path, series(1, start=5), after=[{"kind": "stop"}])
    (recording,) = recordings(tmp_path)
    assert (recording.is_open, len(recording.samples), recording.damaged) == (False, 6, 0)


@pytest.mark.parametrize(("before", "after", "ranks"), [(2, 1, [0]), (1, 2, [0, 1])])
def test_a_run_that_goes_on_with_fewer_or_more_processes_has_no_straggler(
    tmp_path: Path, before: int, after: int, ranks: list[int]
) -> None:
    """The one that began had 2 processes at 0.1 s a step, or one at 0.2 s, for longer than it has gone on since."""
    for begin, seconds, world_size in ((0, 90, before), (80, 20, after)):  # killed at 90 s, saved at 80 s
        for rank in range(world_size):
            path = tmp_path / ("monitor-rank1.jsonl" if rank else "monitor.jsonl")
            samples = series(seconds, start=begin, step_s=0.2 / world_size)
            write(path, samples, before=[start(rank=rank, world_size=world_size)])
    found = recordings(tmp_path)
    assert [each.rank for each in found] == ranks
    assert alerts_of_ranks({each.rank: each.samples for each in found}) == []
    path = tmp_path / "monitor.jsonl"
    of_end = path.stat().st_size - path.read_bytes().rindex(b"\n", 0, -2000)
    assert [each.rank for each in recordings(tmp_path, of_end)] == ranks


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_cut_short_is_skipped_and_counted(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "m.jsonl", series(5), before=[start()])
    path.write_bytes(path.read_bytes()[:-cut])
    recording = read_recording(path)
    # Without its line end alone it is whole.
    assert (len(recording.samples), recording.damaged) == ((5, 0) if cut == 1 else (4, 1))


def test_a_run_that_goes_back_drops_what_is_done_again(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", series(100), before=[start()])  # killed: no stop
    write(path, series(60, start=80), before=[start()])
    samples = read_recording(path).samples
    assert [sample.time for sample in samples] == list(range(140))
    assert [sample.process for sample in samples] == [0] * 80 + [1] * 60


FULL = Gpu(
    index=1,
    util=93.0,
    used=2048.0,
    total=81920.0,
    power_w=402.5,
    sm_mhz=1980.0,
    mem_mhz=2619.0,
    temperature_c=61.0,
    throttle=("power_cap", "sw_thermal"),
)
HOST = Host(cpu=85.5, own_cores=1.75, ram_used=6000.5, ram_total=24105.6, rss=2100.0, load=1.25)


def test_a_record_gives_the_sample_back() -> None:
    for sample in (Sample(time=12.345, step=70, step_s=0.25, host=HOST, gpus=(FULL, Gpu(index=3))), Sample(time=0.0)):
        assert from_record(json.loads(json.dumps(to_record(sample), allow_nan=False))) == sample


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "cpu", "util"]), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["time", "step", "step_s", "host", "gpus"]), values))
def test_whatever_a_file_holds_is_a_sample_or_none(record: dict[str, Any]) -> None:
    sample = from_record(record)
    if sample is not None:
        assert math.isfinite(sample.time)
        json.dumps(to_record(sample), allow_nan=False)
