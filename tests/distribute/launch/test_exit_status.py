"""Which rank failed first, and the one report of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hasten.distribute.consensus import OtherRankFailed
from hasten.distribute.group import RendezvousError
from hasten.distribute.launch.exit_status import End, ends_of, exit_code_of, first_of, report_of
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import RankRecord, read_record, record_of
from hasten.distribute.launch.watchdog import STALLED, Stall, stack_file


def end(rank: int, how: Any, **fields: Any) -> End:
    given: dict[str, Any] = {"exit_code": 1, "time": 10.0, "host": "a"}
    return End(rank=rank, how=how, **(given | fields))


def record(kind: Any, time: float) -> RankRecord:
    return RankRecord(kind=kind, time=time, exit_code=1, message="", traceback="")


def failure(rank: int, code: int, *, at: int = 10) -> ProcessFailure:
    result = ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=code, error_file="none")
    result.timestamp = at
    return result


def ends_of_job(folder: Path, *failures: ProcessFailure, **records: RankRecord) -> list[End]:
    """records: by name, as `rank1`. failures: in the order in which torch saw them."""
    return ends_of(
        {each.local_rank: each for each in failures},
        {int(name.removeprefix("rank")): each for name, each in records.items()},
        host="a",
        logs={each.local_rank: folder / f"rank-{each.local_rank}.log" for each in failures},
        where=folder,
    )


def test_a_rank_that_lost_another_is_not_the_first(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text("step 5\nstep 6\n")
    ends = ends_of_job(tmp_path, failure(0, 1), failure(1, -9), rank0=record("gone", 9.0))
    assert [result.how for result in ends] == ["gone", "killed"]
    assert first_of(ends).rank == 1
    assert ends[1].traceback == "step 5\nstep 6"
    assert exit_code_of(ends[1]) == 137


def test_ranks_that_the_launcher_ended_are_not_the_first(tmp_path: Path) -> None:
    failures = (failure(2, 1), failure(0, -15), failure(1, -9, at=41))
    ends = ends_of_job(tmp_path, *failures, rank2=record("error", 10.5))
    assert [result.how for result in ends] == ["ended", "ended", "error"]
    assert first_of(ends).rank == 2


def test_a_sigterm_that_came_from_elsewhere_is_the_cause(tmp_path: Path) -> None:
    ends = ends_of_job(tmp_path, failure(1, -15), failure(0, 1), rank0=record("gone", 10.9))
    assert first_of(ends).rank == 1
    assert "SIGTERM" in first_of(ends).in_words


def test_of_two_errors_the_earlier_one(tmp_path: Path) -> None:
    ends = ends_of_job(tmp_path, failure(0, 1), failure(1, 1), rank0=record("error", 10.7), rank1=record("error", 10.2))
    assert first_of(ends).rank == 1


def test_of_ranks_that_stand_still_the_one_behind() -> None:
    """At the same step, the one that has not come to the collective in which the others wait."""
    waits = end(0, "stalled", step=6, collectives=31)
    assert first_of([waits, end(1, "stalled", step=5, collectives=30)]).rank == 1
    assert first_of([waits, end(1, "stalled", step=6, collectives=30)]).rank == 1
    assert first_of([waits, end(1, "ended", exit_code=-9)]).rank == 1
    assert first_of([waits, end(1, "gone")]).rank == 0


def test_a_rank_that_did_not_end_when_told_to(tmp_path: Path) -> None:
    """As one that was stopped by SIGSTOP."""
    stack_file(tmp_path, 0).write_text(json.dumps(asdict(Stall(pid=100, step=7, collectives=3))))
    first = first_of(ends_of_job(tmp_path, failure(0, STALLED), failure(1, -9, at=41)))
    assert (first.rank, first.in_words) == (1, "neither answered nor ended when asked to")
    assert exit_code_of(first) == STALLED


@pytest.mark.parametrize(("pid", "how"), [(100, ("stalled", 7, "Thread\n")), (99, ("silent", -1, ""))])
def test_what_a_watchdog_left_is_that_of_the_process(tmp_path: Path, pid: int, how: tuple[str, int, str]) -> None:
    place = json.dumps(asdict(Stall(pid=pid, step=7, collectives=3)))
    stack_file(tmp_path, 0).write_text(f"{place}\nThread\n")
    (now,) = ends_of_job(tmp_path, failure(0, 1))
    assert (now.how, now.step, now.traceback) == how


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


def text_of(out: Path, *ends: End) -> str:
    return report_of(ends, Job(nproc=2, out=out), restarts=0, logs=out / "logs", again="AGAIN", resume="RESUME")


def test_a_mistake_is_its_line_alone(tmp_path: Path) -> None:
    assert text_of(tmp_path, end(0, "ended"), end(1, "mistake", message="a: b")) == "error: a: b"


def test_what_to_do_depends_on_what_was_saved(tmp_path: Path) -> None:
    assert text_of(tmp_path, end(0, "killed", exit_code=-9)).endswith("start again: AGAIN")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").touch()
    assert text_of(tmp_path, end(0, "killed", exit_code=-9)).endswith("resume from the last checkpoint: RESUME")
