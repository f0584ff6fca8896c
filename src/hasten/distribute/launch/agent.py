"""The ranks of one host, started, watched and started again by torch's elastic agent; the rendezvous of each start."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from hasten.distribute.launch import parent_watch
from hasten.distribute.launch.exit_status import End, ends_of
from hasten.distribute.launch.job import Job
from hasten.distribute.launch.record import RankRecord, read_record
from hasten.distribute.launch.rendezvous import Rendezvous
from hasten.distribute.launch.watchdog import LAUNCHED, VARIABLE
from hasten.observe.cores import usable_cores
from hasten.observe.rundir import RANKS

_GRACE_S = 120
"""Seconds that ranks may take to finish a step and save it when the job is asked to stop."""
_TORCH_LOGGERS = "torch.distributed"
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


@dataclass(kw_only=True)
class Attempt:
    """The files of the ranks that were started last."""

    number: int = 0
    logs: dict[int, Path] = field(default_factory=dict)
    """Log file of each rank of this host."""
    records: dict[int, Path] = field(default_factory=dict)
    stopped: dict[int, float] = field(default_factory=dict)
    """Time, in seconds since 1970, at which each stopped (SIGSTOP) rank was killed."""

    def read(self) -> dict[int, RankRecord]:
        """The records of the ranks that wrote one when they ended."""
        records = {rank: read_record(path) for rank, path in self.records.items()}
        return {rank: record for rank, record in records.items() if record is not None}


class RankLogs(LogsSpecs):
    """One log per rank and start with both streams (the rank joins them); rank 0's is shown on the terminal too."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(str(folder))
        self.folder, self.environment, self.attempt = folder, environment, Attempt()

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.attempt = Attempt(number=int(envs[0]["TORCHELASTIC_RESTART_COUNT"]))
        dest = LogsDest()
        for local, env in envs.items():
            rank = int(env["RANK"])
            log = self.folder / f"rank-{rank}.{self.attempt.number}.log"
            record = log.with_suffix(".json")
            record.unlink(missing_ok=True)
            env |= {**self.environment, "TORCHELASTIC_ERROR_FILE": str(record)}
            self.attempt.logs[rank], self.attempt.records[rank] = log, record
            dest.stdouts[local], dest.stderrs[local], dest.error_files[local] = str(log), "", str(record)
            if rank == 0:
                dest.tee_stdouts[local] = str(log)
        return dest


class Agent(LocalElasticAgent):
    """Starts the ranks again after a failure, but not after a user's mistake or where the job was asked to stop."""

    def __init__(
        self, spec: WorkerSpec, logs: RankLogs, failed: Callable[[RunResult, int], None], *, stall_s: float | None
    ) -> None:
        # With a role of no name, the lines of rank 0 are shown as they are.
        super().__init__(spec, logs, exit_barrier_timeout=60, log_line_prefix_template="${role_name}")
        self._logs, self._failed, self._stall_s = logs, failed, stall_s or math.inf
        self._stopped_since: dict[int, float] = {}
        """Time at which each rank was found stopped."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._may_continue(worker_group):
            return RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            kinds = {record.kind for record in self._logs.attempt.read().values()}
            if kinds & {"mistake", "stopped"}:
                self._remaining_restarts = 0
            self._failed(result, self._remaining_restarts)
        return result

    def _may_continue(self, worker_group: WorkerGroup) -> bool:
        """Whether a rank is stopped (SIGSTOP) and may yet be continued; once it may not, it is killed.

        It can't end itself, and torch would wait 30 s for it after the SIGTERM.
        """
        handlers = {worker_group.workers[local].global_rank: it for local, it in self._handlers().items()}
        now = time.monotonic()
        stopped = [rank for rank, handler in handlers.items() if _is_stopped(handler.proc.pid)]
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in stopped}
        failed = any(handler.proc.poll() for handler in handlers.values())
        if stopped and not failed and now - min(self._stopped_since.values()) < self._stall_s:
            return True
        for rank in stopped:
            handlers[rank].close(death_sig=signal.SIGKILL)
            handlers[rank].proc.wait()
            self._logs.attempt.stopped[rank] = time.time()
        return False

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        for handler in self._handlers().values():
            # A stopped rank receives no signal before it is continued.
            handler.proc.send_signal(signal.SIGCONT)
        if self._pcontext is not None:
            # torch's timeout is 30 s, too short to save; in torch 2.10 nothing can change it.
            self._pcontext.close(death_sig, _GRACE_S)
        super()._shutdown(death_sig)

    def _handlers(self) -> dict[int, SubprocessHandler]:
        """Handlers of the processes that were started, by local rank."""
        return self._pcontext.subprocess_handlers if isinstance(self._pcontext, SubprocessContext) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How this host's ranks ended in the last attempt."""

    ends: Sequence[End]
    """Ends of the ranks; empty unless the job failed."""
    records: Mapping[int, RankRecord]
    restarts: int
    lost: RuntimeError | None
    """What ended the launcher's own part: another host that does not answer."""


def run_ranks(
    rendezvous: Rendezvous, command: Sequence[str], folder: Path, *, again: Callable[[Sequence[End], int, int], None]
) -> Outcome:
    """Run `command` (of Python: "-m", ...) as every rank of this host until all have ended.

    folder: of the logs. again: called before a restart with how the ranks ended, the restart's number and the maximum.
    Raises torch's SignalException when this process got a signal to stop, after it has forwarded it to the ranks.
    """
    job = rendezvous.job
    logs = RankLogs(folder, _environment(rendezvous))
    ends: list[End] = []

    def failed(result: RunResult, restarts_left: int) -> None:
        host = rendezvous.hosts[job.node_rank]
        attempt = logs.attempt
        ends[:] = ends_of(result.failures, host=host, logs=attempt.logs, where=job.out / RANKS, stopped=attempt.stopped)
        _write_ends(ends)
        if restarts_left > 0:
            again(ends, job.max_restarts - restarts_left + 1, job.max_restarts)

    spec = WorkerSpec(
        role="",
        local_world_size=job.nproc,
        rdzv_handler=FreshStoreRendezvous(rendezvous),
        entrypoint=sys.executable,
        args=tuple(command),
        max_restarts=job.max_restarts,
    )
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = _SIGNALS
    lost: RuntimeError | None = None
    with quiet(folder):
        try:
            if not Agent(spec, logs, failed, stall_s=job.stall_s).run().is_failed():
                ends.clear()
        except RuntimeError as error:
            lost = error
    return Outcome(ends=ends, records=logs.attempt.read(), restarts=logs.attempt.number, lost=lost)


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


def _environment(rendezvous: Rendezvous) -> dict[str, str]:
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // rendezvous.job.nproc)))
    return {**rank_variables(rendezvous.job), LAUNCHED: rendezvous.name, "OMP_NUM_THREADS": threads}


def rank_variables(job: Job) -> dict[str, str]:
    """Environment variables of the ranks that this process starts."""
    # Unbuffered, so that the log of a killed rank is complete.
    variables = {parent_watch.VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    if job.stall_s is not None:
        variables[VARIABLE] = str(job.stall_s)
    return variables


def _write_ends(ends: Sequence[End]) -> None:
    """Append the tracebacks to the ranks' logs; on the terminal, only the launcher reports them, once and in order."""
    for end in ends:
        if end.how not in ("silent", "killed") and end.traceback:
            with Path(end.log).open("a") as log:
                log.write(end.traceback)


class FreshStoreRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous, with a fresh store each time. Its port is shared through the launchers' store."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        job = rendezvous.job
        super().__init__(rendezvous.host, 0, job.node_rank, job.nnodes, job.rdzv_id, math.ceil(job.join_s))
        self.launchers, self.number = rendezvous.store, 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises RuntimeError if another host does not join."""
        key, first = f"round/{self.number}", self.rank == 0
        self.number += 1
        port = 0 if first else int(self.launchers.get(key))
        self._store = TCPStore(self.master_addr, port, None, first, self.timeout, wait_for_workers=False)
        self.master_port = self._store.port
        if first:
            self.launchers.set(key, str(self.master_port))
        info: RendezvousInfo = super().next_rendezvous()
        return info
