"""One host's part of a launch, from meeting the others to the report of what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException

from hasten.distribute.launch.agent import Outcome, run_ranks
from hasten.distribute.launch.ends import End, first_of
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.meet import Meeting, meet
from hasten.distribute.launch.record import Record
from hasten.distribute.launch.report import Failure, exit_code_of, report_of
from hasten.files import printable
from hasten.observe.rundir import LOGS

_REPORT = "failure.txt"
_STOP_CODES = {"SIGINT": 130, "SIGUSR1": 75}


def launch(
    job: Job, command: Sequence[str], *, again: str, resume: str, say: Callable[[str], None] | None = None
) -> int:
    """Run `command` as every rank of the job, and return the exit code that the launcher ends with.

    command: arguments of Python ("-m", module, ...); it wraps its work in `record.recorded`. again, resume: what a
    user may type to start it again, and from its last checkpoint. say: prints a failure; standard error by default.
    Raises ValueError where the hosts can't meet.
    """
    tell = say or _to_stderr
    for warning in job.warnings():
        tell(f"warning: {warning}")
    meeting = meet(job)
    folder = job.out / LOGS / meeting.name

    def once_more(ends: Sequence[End], number: int, of: int) -> None:
        first = first_of(ends)
        tell(f"warning: rank {first.rank} on {first.host} {first.in_words}; all ranks start again ({number} of {of})")

    try:
        outcome = run_ranks(meeting, command, folder, again=once_more)
    except SignalException as stop:
        return _STOP_CODES.get(stop.sigval.name, 128 + stop.sigval)
    if outcome.lost is not None and not outcome.ends:
        tell(_lost_meeting(meeting, outcome.lost))
        return 1
    if not outcome.ends:
        return stop_code(outcome.records)
    return _report_failure(meeting, outcome, folder, again=again, resume=resume, tell=tell)


def stop_code(records: Mapping[int, Record]) -> int:
    """The exit code: 0, or that of the request on which the ranks stopped."""
    return max((record.exit_code for record in records.values() if record.kind in ("stopped", "other")), default=0)


def _report_failure(
    meeting: Meeting, outcome: Outcome, folder: Path, *, again: str, resume: str, tell: Callable[[str], None]
) -> int:
    job = meeting.job
    ends, lost = meeting.exchange(outcome.ends)
    size = job.nproc * job.nnodes
    failure = Failure(ends=ends, size=size, lost=lost, restarts=outcome.restarts)
    text = report_of(failure, logs=folder, out=job.out, again=again, resume=resume)
    (folder / _REPORT).write_text(text + "\n")
    first = first_of(ends)
    if first.how != "mistake" or job.node_rank == 0 or first.host == meeting.hosts[job.node_rank]:
        tell(text)
    return exit_code_of(first)


def _lost_meeting(meeting: Meeting, error: RuntimeError) -> str:
    lines = str(error).strip().splitlines()
    who = "another host" if meeting.job.node_rank == 0 else f"{meeting.hosts[0]} (node 0)"
    return (
        f"error: lost {who} at {meeting.host}:{meeting.port}: {lines[0] if lines else type(error).__name__}\n"
        "check that host, then start the job again with --resume on all of them"
    )


def _to_stderr(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
