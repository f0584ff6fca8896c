"""One host's part of a launch, from the rendezvous of the hosts to the report of what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from torch.distributed.elastic.multiprocessing import SignalException

from hasten.distribute.launch.agent import run_ranks
from hasten.distribute.launch.exit_status import End, exit_code_of, first_of, report_of
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import RankRecord
from hasten.distribute.launch.rendezvous import Rendezvous, join
from hasten.files import first_line, printable
from hasten.observe.rundir import LOGS

_REPORT = "failure.txt"
_STOP_CODES = {"SIGINT": 130, "SIGUSR1": 75}


def launch(job: Job, command: Sequence[str], *, again: str, resume: str) -> int:
    """Run `command` as every rank of the job, and return the exit code that the launcher ends with.

    command: arguments of Python ("-m", module, ...); it wraps its work in `record.recorded`. again, resume: what a
    user may type to start it again, and from its last checkpoint.
    Raises ValueError where the hosts can't meet.
    """
    if warning := job.warning():
        print_error(f"warning: {warning}")
    rendezvous = join(job)
    folder = job.out / LOGS / rendezvous.name

    def warn_restart(ends: Sequence[End], number: int, of: int) -> None:
        first = first_of(ends)
        print_error(
            f"warning: rank {first.rank} on {first.host} {first.in_words}; all ranks start again ({number} of {of})"
        )

    try:
        outcome = run_ranks(rendezvous, command, folder, again=warn_restart)
    except SignalException as stop:
        return _STOP_CODES.get(stop.sigval.name, 128 + stop.sigval)
    if outcome.lost is not None and not outcome.ends:
        print_error(_lost_rendezvous(rendezvous, outcome.lost))
        return 1
    if not outcome.ends:
        return stop_code(outcome.records)
    ends, lost = rendezvous.exchange(outcome.ends)
    text = report_of(
        ends,
        job.nproc * job.nnodes,
        lost=lost,
        restarts=outcome.restarts,
        logs=folder,
        out=job.out,
        again=again,
        resume=resume,
    )
    (folder / _REPORT).write_text(text + "\n")
    first = first_of(ends)
    if first.how != "mistake" or job.node_rank == 0 or first.host == rendezvous.hosts[job.node_rank]:
        print_error(text)
    return exit_code_of(first)


def stop_code(records: Mapping[int, RankRecord]) -> int:
    """The exit code: 0, or that of the request on which the ranks stopped."""
    return max((record.exit_code for record in records.values() if record.kind in ("stopped", "other")), default=0)


def _lost_rendezvous(rendezvous: Rendezvous, error: RuntimeError) -> str:
    who = "another host" if rendezvous.job.node_rank == 0 else f"{rendezvous.hosts[0]} (node 0)"
    return (
        f"error: lost {who} at {rendezvous.host}:{rendezvous.port}: {first_line(error)}\n"
        "check that host, then start the job again with --resume on all of them"
    )


def print_error(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
