"""One host's part of a launch, from the rendezvous of the hosts to the report of what went wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException

from hasten.distribute.launch.agent import rank_variables, run_ranks
from hasten.distribute.launch.exit_status import End, exit_code_of, first_of, report_of
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import FOLDER, RankRecord, read_record
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
        ends, job.nproc * job.nnodes, lost=lost, restarts=outcome.restarts, logs=folder, out=job.out,
        again=again, resume=resume,
    )  # fmt: skip
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


def launch_horovod(job: Job, command: Sequence[str], *, again: str, resume: str) -> int:
    """Like `launch`, by Horovod's own launcher, which its collectives need: on one host, without restarts.

    Raises ValueError where Horovod is not installed, or for options that it can't do.
    """
    program = _horovodrun(job)
    folder = job.out.absolute() / LOGS / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | rank_variables(job) | {FOLDER: str(folder)}
    options = ["-np", str(job.nproc), "--gloo", "--output-filename", str(folder)]
    process = subprocess.run([program, *options, sys.executable, *command], env=environment, check=False)
    records = {rank: read_record(folder / f"rank-{rank}.json") for rank in range(job.nproc)}
    present = {rank: record for rank, record in records.items() if record is not None}
    if process.returncode == 0:
        return stop_code(present)
    print_error(_horovod_report(present, folder, process.returncode, again=again, resume=resume))
    return 2 if any(record.kind == "mistake" for record in present.values()) else 1


def _horovodrun(job: Job) -> str:
    program = shutil.which("horovodrun") or shutil.which("horovodrun", path=str(Path(sys.executable).parent))
    if program is None or importlib.util.find_spec("horovod") is None:
        raise ValueError("distribute.strategy=horovod: Horovod is not installed; `make horovod` builds it, or use ddp")
    if job.nnodes > 1 or job.max_restarts:
        raise ValueError(
            "distribute.strategy=horovod: --nnodes and --max-restarts are not for Horovod; start `hasten train` by "
            "`horovodrun -H HOST:N,...` yourself, and again with --resume after a failure"
        )
    return program


def _horovod_report(records: dict[int, RankRecord], folder: Path, code: int, *, again: str, resume: str) -> str:
    failures = {rank: record for rank, record in records.items() if record.kind in ("mistake", "error", "memory")}
    if not failures:
        return (
            f"error: horovodrun ended with exit code {code}; logs: {folder}\nresume: {resume}\nor start again: {again}"
        )
    rank, record = min(failures.items(), key=lambda item: (item[1].kind != "mistake", item[1].time))
    if record.kind == "mistake":
        return f"error: {record.message}"
    return f"error: rank {rank} on {record.host} failed first\n{record.traceback}logs: {folder}\nresume: {resume}"
