"""The ranks of one host: started by torch's elastic processes, watched, and started again after a failure."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import (
    LogsDest,
    LogsSpecs,
    SignalException,
    SubprocessContext,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hasten.distribute.launch import parent_watch
from hasten.distribute.launch.exit_status import End, ends_of
from hasten.distribute.launch.record import RankRecord, read_record
from hasten.distribute.launch.rendezvous import Rendezvous
from hasten.distribute.launch.watchdog import LAUNCHED, VARIABLE
from hasten.observe.cores import usable_cores
from hasten.observe.rundir import RANKS

_GRACE_S = 120
"""Seconds that ranks may take to finish a step and save it when the job is asked to stop."""
_BARRIER_S = 60
"""Seconds that a host whose ranks have ended waits for the others: node 0 keeps the store of all ranks."""
_LOOK_EVERY_S = 0.1
_TORCH_LOGGERS = "torch.distributed"
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One start of this host's ranks, and the files that they write."""

    processes: SubprocessContext
    logs: dict[int, Path]
    """Log file of each rank of this host."""
    records: dict[int, Path]
    stopped: dict[int, float] = field(default_factory=dict)
    """Time, in seconds since 1970, at which each stopped (SIGSTOP) rank was killed."""

    def read(self) -> dict[int, RankRecord]:
        """The records of the ranks that wrote one when they ended."""
        records = {rank: read_record(path) for rank, path in self.records.items()}
        return {rank: record for rank, record in records.items() if record is not None}

    def wait(self, stall_s: float) -> dict[int, ProcessFailure]:
        """Wait until all ranks ended, or one failed and the others were ended: the failures by rank, as torch saw them.

        A stopped (SIGSTOP) rank may be continued for `stall_s`; then it is killed. Whatever ends the wait, no rank is
        left behind.
        """
        since: dict[int, float] = {}
        number = signal.SIGTERM
        try:
            while True:
                result = None if self._may_continue(since, stall_s) else self.processes.wait(0)
                if result is not None:
                    return {min(self.logs) + local: failure for local, failure in result.failures.items()}
                time.sleep(_LOOK_EVERY_S)
        except SignalException as stop:
            number = stop.sigval
            raise
        finally:
            for handler in self.processes.subprocess_handlers.values():
                # A stopped rank receives no signal before it is continued.
                handler.proc.send_signal(signal.SIGCONT)
            # They may take some time to save.
            self.processes.close(number, _GRACE_S)

    def _may_continue(self, since: dict[int, float], stall_s: float) -> bool:
        """Whether a rank is stopped and may yet be continued; once it may not, it is killed.

        It can't end itself, and torch would wait 30 s for it after the SIGTERM. since: when each was found stopped.
        """
        first, now = min(self.logs), time.monotonic()
        handlers = {first + local: handler for local, handler in self.processes.subprocess_handlers.items()}
        stopped = [rank for rank, handler in handlers.items() if _is_stopped(handler.proc.pid)]
        for rank in handlers:
            since[rank] = since.get(rank, now) if rank in stopped else now
        failed = any(handler.proc.poll() for handler in handlers.values())
        if stopped and not failed and now - min(since.values()) < stall_s:
            return True
        for rank in stopped:
            handlers[rank].close(death_sig=signal.SIGKILL)
            handlers[rank].proc.wait()
            self.stopped[rank] = time.time()
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How this host's ranks ended in the last attempt."""

    ends: Sequence[End] = ()
    """Ends of the ranks; empty unless the job failed."""
    records: Mapping[int, RankRecord] = field(default_factory=dict)
    restarts: int = 0
    lost: RuntimeError | None = None
    """What ended the launcher's own part: another host that does not answer."""


def run_ranks(
    rendezvous: Rendezvous, command: Sequence[str], folder: Path, *, again: Callable[[Sequence[End], int, int], None]
) -> Outcome:
    """Run `command` (of Python: "-m", ...) as every rank of this host until all have ended.

    All start again after a failure, but not after a user's mistake or where the job was asked to stop. folder: of the
    logs. again: called before a restart with how the ranks ended, the restart's number and the maximum.
    Raises torch's SignalException when this process got a signal to stop, after it has forwarded it to the ranks.
    """
    job, host, outcome = rendezvous.job, rendezvous.hosts[rendezvous.job.node_rank], Outcome()
    stall_s = job.stall_s or math.inf
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = _SIGNALS
    with quiet(folder):
        for number in range(job.max_restarts + 1):
            try:
                store = _store_of_ranks(rendezvous, number)
            except RuntimeError as error:
                return Outcome(ends=outcome.ends, records=outcome.records, restarts=outcome.restarts, lost=error)
            attempt = _start(rendezvous, command, folder, number, store.port)
            failures = attempt.wait(stall_s)
            records = attempt.read()
            if not failures:
                with suppress(RuntimeError):  # a host whose ranks failed does not come
                    rendezvous.wait_for_all(f"done/{number}", _BARRIER_S)
                return Outcome(records=records, restarts=number)
            ends = ends_of(failures, host=host, logs=attempt.logs, where=job.out / RANKS, stopped=attempt.stopped)
            _write_ends(ends)
            outcome = Outcome(ends=ends, records=records, restarts=number)
            if number == job.max_restarts or {record.kind for record in records.values()} & {"mistake", "stopped"}:
                break
            again(ends, number + 1, job.max_restarts)
    return outcome


def _store_of_ranks(rendezvous: Rendezvous, number: int) -> TCPStore:
    """The store by which the ranks of one start meet, on node 0; its port is shared through the launchers' store.

    Raises RuntimeError if another host does not join.
    """
    job, key, first = rendezvous.job, f"round/{number}", rendezvous.job.node_rank == 0
    port = 0 if first else int(rendezvous.store.get(key))
    timeout = timedelta(seconds=math.ceil(job.join_s))
    store = TCPStore(rendezvous.host, port, None, first, timeout, wait_for_workers=False)
    if first:
        rendezvous.store.set(key, str(store.port))
    rendezvous.wait_for_all(f"joined/{number}", job.join_s)
    return store


def _start(rendezvous: Rendezvous, command: Sequence[str], folder: Path, number: int, port: int) -> Attempt:
    """Start every rank of this host, with one log for both streams; rank 0's is shown on the terminal too."""
    job = rendezvous.job
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // job.nproc)))
    shared = {
        parent_watch.VARIABLE: str(os.getpid()),
        # So that the log of a killed rank is complete.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        LAUNCHED: rendezvous.name,
        "OMP_NUM_THREADS": threads,
        "LOCAL_WORLD_SIZE": str(job.nproc),
        "WORLD_SIZE": str(job.nproc * job.nnodes),
        "GROUP_RANK": str(job.node_rank),
        "GROUP_WORLD_SIZE": str(job.nnodes),
        "MASTER_ADDR": rendezvous.host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(number),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_RUN_ID": job.rdzv_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if job.stall_s is not None:
        shared[VARIABLE] = str(job.stall_s)
    dest, environments = LogsDest(), {}
    logs: dict[int, Path] = {}
    records: dict[int, Path] = {}
    for local in range(job.nproc):
        rank = job.node_rank * job.nproc + local
        logs[rank] = folder / f"rank-{rank}.{number}.log"
        records[rank] = logs[rank].with_suffix(".json")
        records[rank].unlink(missing_ok=True)
        dest.stdouts[local], dest.stderrs[local] = str(logs[rank]), ""
        dest.error_files[local] = str(records[rank])
        if rank == 0:
            dest.tee_stdouts[local] = str(logs[rank])
        names = {"RANK": str(rank), "LOCAL_RANK": str(local), "TORCHELASTIC_ERROR_FILE": str(records[rank])}
        environments[local] = shared | names
    processes = start_processes(
        name="",
        entrypoint=sys.executable,
        args=dict.fromkeys(environments, tuple(command)),
        envs=environments,
        logs_specs=_RankLogs(folder, dest),
        log_line_prefixes=dict.fromkeys(environments, ""),
    )
    assert isinstance(processes, SubprocessContext)
    return Attempt(processes=processes, logs=logs, records=records)


@contextmanager
def quiet(folder: Path) -> Iterator[None]:
    """Redirect the log of torch's launcher to a file: the report has the same content in order."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "launcher.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith(_TORCH_LOGGERS)]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        handler.close()
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _write_ends(ends: Sequence[End]) -> None:
    """Append the tracebacks to the ranks' logs; on the terminal, only the launcher reports them, once and in order."""
    for end in ends:
        if end.how not in ("silent", "killed") and end.traceback:
            with Path(end.log).open("a") as log:
                log.write(end.traceback)
