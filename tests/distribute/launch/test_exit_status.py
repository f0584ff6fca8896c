"""Which rank failed first, and the one report of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hasten.distribute.consensus import OtherRankFailed
from hasten.distribute.group import RendezvousError
from hasten.distribute.launch.exit_status import End, ends_of, exit_code_of, first_of, report_of
from hasten.distribute.launch.record import RankRecord, read_record, record_of, write_record
from hasten.distribute.launch.watchdog import STALLED, Stall, stack_file, stall_file


def end(rank: int, how: Any, **fields: Any) -> End:
    given: dict[str, Any] = {"exit_code": 1, "message": "", "traceback": "", "time": 10.0, "log": "", "host": "a"}
    return End(rank=rank, how=how, **(given | fields))


def record(kind: Any, time: float, **fields: Any) -> RankRecord:
    given: dict[str, Any] = {"exit_code": 1, "message": "", "traceback": "", "host": "a"}
    return RankRecord(kind=kind, time=time, **(given | fields))


def failure(folder: Path, rank: int, code: int, *, at: int = 10, wrote: RankRecord | None = None) -> ProcessFailure:
    path = folder / f"rank-{rank}.json"
    if wrote is not None:
        write_record(path, wrote)
    result = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file=str(path))
    result.timestamp = at
    return result


def ends_of_job(
    folder: Path, failures: dict[int, ProcessFailure], *, stopped: Mapping[int, float] = MappingProxyType({})
) -> list[End]:
    logs = {rank: folder / f"rank-{rank}.log" for rank in failures}
    return ends_of(failures, host="a", logs=logs, where=folder, stopped=stopped)


def test_a_rank_that_lost_another_is_not_the_first(tmp_path: Path) -> None:
    lost = record("gone", 9.0)
    (tmp_path / "rank-1.log").write_text("step 5\nstep 6\n")
    ends = ends_of_job(tmp_path, {0: failure(tmp_path, 0, 1, wrote=lost), 1: failure(tmp_path, 1, -9)})
    assert [result.how for result in ends] == ["gone", "killed"]
    assert first_of(ends).rank == 1
    assert ends[1].traceback == "step 5\nstep 6"
    assert exit_code_of(ends[1]) == 137


def test_ranks_that_the_launcher_ended_are_not_the_first(tmp_path: Path) -> None:
    failures = {
        2: failure(tmp_path, 2, 1, wrote=record("error", 10.5)),
        0: failure(tmp_path, 0, -15, at=10),
        1: failure(tmp_path, 1, -9, at=41),
    }
    ends = ends_of_job(tmp_path, failures)
    assert [result.how for result in ends] == ["ended", "ended", "error"]
    assert first_of(ends).rank == 2


def test_a_sigterm_that_came_from_elsewhere_is_the_cause(tmp_path: Path) -> None:
    ends = ends_of_job(tmp_path, {1: failure(tmp_path, 1, -15), 0: failure(tmp_path, 0, 1, wrote=record("gone", 10.9))})
    assert first_of(ends).rank == 1
    assert "SIGTERM" in first_of(ends).in_words


def test_of_two_errors_the_earlier_one(tmp_path: Path) -> None:
    wrote = {rank: record("error", time) for rank, time in ((0, 10.7), (1, 10.2))}
    ends = ends_of_job(tmp_path, {rank: failure(tmp_path, rank, 1, wrote=wrote[rank]) for rank in wrote})
    assert first_of(ends).rank == 1


def test_of_ranks_that_stand_still_the_one_behind() -> None:
    """At the same step, the one that has not come to the collective in which the others wait."""
    waits = end(0, "stalled", step=6, collectives=31)
    assert first_of([waits, end(1, "stalled", step=5, collectives=30)]).rank == 1
    assert first_of([waits, end(1, "stalled", step=6, collectives=30)]).rank == 1
    assert first_of([waits, end(1, "ended", exit_code=-9)]).rank == 1
    assert first_of([waits, end(1, "gone")]).rank == 0


@pytest.mark.parametrize("others", [{"code": STALLED}, {"code": 1, "wrote": record("gone", 10.1)}])
def test_a_rank_that_was_stopped_is_why_the_others_ended(tmp_path: Path, others: dict[str, Any]) -> None:
    failures = {0: failure(tmp_path, 0, **others), 1: failure(tmp_path, 1, -9)}
    first = first_of(ends_of_job(tmp_path, failures, stopped={1: 10.2}))
    assert (first.rank, first.in_words) == (1, "was stopped (SIGSTOP) and not continued")
    assert exit_code_of(first) == STALLED


def test_an_error_before_a_stopped_rank_was_killed(tmp_path: Path) -> None:
    failures = {0: failure(tmp_path, 0, 1, wrote=record("error", 10.1)), 1: failure(tmp_path, 1, -9)}
    assert first_of(ends_of_job(tmp_path, failures, stopped={1: 10.2})).rank == 0


def test_a_rank_that_did_not_end_when_told_to(tmp_path: Path) -> None:
    stall_file(tmp_path, 0).write_text(json.dumps(asdict(Stall(rank=0, pid=100, step=7, collectives=3))))
    failures = {0: failure(tmp_path, 0, STALLED), 1: failure(tmp_path, 1, -9, at=41)}
    first = first_of(ends_of_job(tmp_path, failures))
    assert (first.rank, first.in_words) == (1, "neither answered nor ended when asked to")
    assert exit_code_of(first) == STALLED


def test_what_a_watchdog_left_is_that_of_the_process(tmp_path: Path) -> None:
    stall_file(tmp_path, 0).write_text(json.dumps(asdict(Stall(rank=0, pid=100, step=7, collectives=3))))
    stack_file(tmp_path, 0).write_text("pid 100\nThread MainThread\n")
    (now,) = ends_of_job(tmp_path, {0: failure(tmp_path, 0, STALLED)})
    assert (now.how, now.step, now.traceback) == ("stalled", 7, "Thread MainThread\n")
    stall_file(tmp_path, 0).write_text(json.dumps(asdict(Stall(rank=0, pid=99, step=7, collectives=3))))
    stack_file(tmp_path, 0).write_text("pid 99\nThread MainThread\n")
    (before,) = ends_of_job(tmp_path, {0: failure(tmp_path, 0, 1)})
    assert (before.how, before.step, before.traceback) == ("silent", -1, "")


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ValueError("train.steps: wrong"), "mistake", 2),
        (RendezvousError("nobody there"), "gone", 1),
        (OtherRankFailed(), "other", 2),
        (RuntimeError("[gloo/transport/tcp/pair.cc:537] Connection closed by peer"), "gone", 1),
        (RuntimeError("size mismatch"), "error", 1),
        (MemoryError("short"), "memory", 1),
        (KeyboardInterrupt(), "stopped", 130),
        (SystemExit(143), "stopped", 143),
        (SystemExit(2), "mistake", 2),
    ],
)
def test_what_ends_a_rank(error: BaseException, kind: str, code: int) -> None:
    result = record_of(error, short_of_memory=lambda error: isinstance(error, MemoryError))
    assert (result.kind, result.exit_code) == (kind, code)


def test_a_record_that_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path / "none") is None
    (tmp_path / "torn").write_text('{"hasten": {"kind"')
    assert read_record(tmp_path / "torn") is None


def text_of(out: Path, *ends: End, lost: tuple[str, ...] = ()) -> str:
    return report_of(
        ends, 2, lost=lost, restarts=0, logs=out / "logs", out=out, again="AGAIN", resume="RESUME"
    )  # fmt: skip


def test_a_mistake_is_its_line_alone(tmp_path: Path) -> None:
    assert text_of(tmp_path, end(0, "ended"), end(1, "mistake", message="a: b")) == "error: a: b"


def test_what_to_do_depends_on_what_was_saved(tmp_path: Path) -> None:
    assert text_of(tmp_path, end(0, "killed", exit_code=-9)).endswith("start again: AGAIN")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    assert text_of(tmp_path, end(0, "killed", exit_code=-9)).endswith("resume from the last checkpoint: RESUME")


def test_a_lost_host_is_named_first(tmp_path: Path) -> None:
    text = text_of(tmp_path, end(0, "gone", message="Timed out", traceback="T"), lost=("b (node 1)",))
    assert text.splitlines()[0] == "error: lost b (node 1): it does not answer any more"
    assert "T\n" not in text
