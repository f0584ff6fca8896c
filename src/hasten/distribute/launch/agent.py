"""The ranks of one host: started by torch's elastic processes, started again after a failure, and reported on."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException, start_processes

from hasten.distribute.launch.exit_status import End, ends_of, exit_code_of, first_of, report_of
from hasten.distribute.launch.job import Job, Rendezvous
from hasten.distribute.launch.record import RankRecord, read_record
from hasten.distribute.launch.watchdog import LAUNCHED, VARIABLE
from hasten.distribute.world import LAUNCHER_PID
from hasten.files import first_line, printable
from hasten.observe.cores import usable_cores
from hasten.observe.rundir import LOGS, RANKS

_STOP_CODES = {"SIGINT": 130, "SIGUSR1": 75}
_GRACE_S = 120
"""Seconds that ranks may take to finish a step and save it when the job is asked to stop."""
_BARRIER_S = 60
"""Seconds that a host whose ranks have ended waits for the others: node 0 keeps the store of all ranks."""
_LOOK_EVERY_S = 0.1
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


def launch(job: Job, command: Sequence[str], *, again: str, resume: str) -> int:
    """Run `command` as every rank of the job, and return the exit code that the launcher ends with.

    command: arguments of Python ("-m", module, ...); it wraps its work in `record.recorded`. again, resume: what a
    user may type to start it again, and from its last checkpoint.
    Raises ValueError where the hosts can't meet.
    """
    if warning := job.warning():
        print_error(f"warning: {warning}")
    rendezvous = Rendezvous(job)
    folder = job.out / LOGS / rendezvous.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ends, records, restarts = run_ranks(rendezvous, command, folder)
    except SignalException as stop:
        return _STOP_CODES.get(stop.sigval.name, 128 + stop.sigval)
    except ConnectionError as error:
        print_error(f"error: {error}\ncheck the hosts, then start the job again with --resume on all of them")
        return 1
    if not ends:
        # The ranks are done, or have saved and stopped on a request.
        ended = [record for record in records.values() if record.kind in ("stopped", "other")]
        return max((record.exit_code for record in ended), default=0)
    text = report_of(ends, job, restarts=restarts, logs=folder, again=again, resume=resume)
    name = f"failure-{job.node_rank}.txt" if job.node_rank else "failure.txt"
    (folder / name).write_text(text + "\n", encoding="utf-8")
    print_error(text)
    return exit_code_of(first_of(ends))


def run_ranks(
    rendezvous: Rendezvous, command: Sequence[str], folder: Path
) -> tuple[list[End], dict[int, RankRecord], int]:
    """Run `command` (of Python: "-m", ...) as every rank of this host until all have ended; how, and how many restarts.

    The ends and the ranks' own records are those of the last start; the former are empty unless the job failed.

    All start again after a failure, but not after a user's mistake or where the job was asked to stop. folder: of the
    logs. Raises ConnectionError if another host does not join, and torch's SignalException when this process got a
    signal to stop, after it has forwarded it to the ranks.
    """
    job = rendezvous.job
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = _SIGNALS
    for number in range(job.max_restarts + 1):
        try:
            rendezvous.wait_for_all(f"joined/{number}", job.join_s)
        except RuntimeError as error:
            raise ConnectionError(f"lost another host of {rendezvous.host}: {first_line(error)}") from error
        with _quiet(folder):
            ends, records = _attempt(rendezvous, command, folder, number)
        if not ends:
            with suppress(RuntimeError):  # a host whose ranks failed does not come
                rendezvous.wait_for_all(f"done/{number}", _BARRIER_S)
            break
        if number == job.max_restarts or {record.kind for record in records.values()} & {"mistake", "stopped"}:
            break
        first = first_of(ends)
        print_error(
            f"warning: rank {first.rank} on {first.host} {first.in_words}; all ranks start again "
            f"({number + 1} of {job.max_restarts})"
        )
    return ends, records, number


def _attempt(
    rendezvous: Rendezvous, command: Sequence[str], folder: Path, number: int
) -> tuple[list[End], dict[int, RankRecord]]:
    """Start every rank of this host and wait until all ended, or one failed and the others were ended.

    Both streams of a rank go to one log; rank 0's is shown on the terminal too. Whatever ends the wait, no rank is left
    behind.
    """
    job = rendezvous.job
    first = job.node_rank * job.nproc
    logs = {first + local: folder / f"rank-{first + local}.{number}.log" for local in range(job.nproc)}
    errors = {rank: log.with_suffix(".json") for rank, log in logs.items()}
    dest = LogsDest()
    for rank, log in logs.items():
        errors[rank].unlink(missing_ok=True)
        dest.stdouts[rank - first], dest.stderrs[rank - first] = str(log), ""
        dest.error_files[rank - first] = str(errors[rank])
        if rank == 0:
            dest.tee_stdouts[0] = str(log)
    processes = start_processes(
        name="",
        entrypoint=sys.executable,
        args={local: tuple(command) for local in range(job.nproc)},
        envs={rank - first: _environment(rendezvous, number, rank, errors[rank]) for rank in logs},
        logs_specs=_RankLogs(folder, dest),
        log_line_prefixes=dict.fromkeys(range(job.nproc), ""),
    )
    death = signal.SIGTERM
    try:
        result = processes.wait(period=_LOOK_EVERY_S)
    except SignalException as stop:
        if sys.platform == "win32":  # Ctrl-C reaches every process of the console, and nothing else can be sent
            processes.wait(_GRACE_S, period=_LOOK_EVERY_S)
        else:
            death = stop.sigval
        raise
    finally:
        # They may take some time to save.
        processes.close(death, _GRACE_S)
    records = {rank: record for rank, path in errors.items() if (record := read_record(path)) is not None}
    failures = {} if result is None else {first + local: failure for local, failure in result.failures.items()}
    ends = ends_of(failures, records, host=socket.gethostname(), logs=logs, where=job.out / RANKS)
    for end in ends:
        if end.how not in ("silent", "killed") and end.traceback:
            # On the terminal, only the launcher reports it, once and in order.
            with logs[end.rank].open("a", encoding="utf-8") as file:
                file.write(end.traceback)
    return ends, records


class _RankLogs(LogsSpecs):
    """The log and error file of each rank, by its local number."""

    def __init__(self, folder: Path, dest: LogsDest) -> None:
        super().__init__(str(folder))
        self.folder, self.dest = folder, dest

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        return self.dest


def _environment(rendezvous: Rendezvous, number: int, rank: int, error_file: Path) -> dict[str, str]:
    job = rendezvous.job
    variables = {
        LAUNCHER_PID: str(os.getpid()),
        # So that the log of a killed rank is complete.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        LAUNCHED: rendezvous.name,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // job.nproc))),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % job.nproc),
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.nproc),
        "MASTER_ADDR": rendezvous.host,
        "MASTER_PORT": str(rendezvous.store.port),
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        "TORCHELASTIC_RESTART_COUNT": str(number),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return variables if job.stall_s is None else {**variables, VARIABLE: str(job.stall_s)}


@contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """Redirect the log of torch's launcher to a file: the report has the same content in order."""
    handler = logging.FileHandler(folder / "launcher.log", encoding="utf-8")
    names = [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed")]
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        handler.close()
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate


def print_error(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
