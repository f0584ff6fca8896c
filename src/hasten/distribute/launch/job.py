"""One launch: how many processes on how many hosts, and the meeting of the hosts' launchers."""

from __future__ import annotations

import math
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from hasten.distribute.group import why_unreachable, with_timeout
from hasten.files import first_line
from hasten.observe.cores import usable_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One launcher's view of a job. Every host has a launcher, with the same values but for `node_rank`."""

    nproc: int
    """Processes on this host."""
    out: Path
    """The run's folder."""
    nnodes: int = 1
    node_rank: int = 0
    master: str | None = None
    """HOST:PORT of node 0; None on one host, which takes a free port."""
    max_restarts: int = 0
    """How often all processes start again after one of them failed."""
    stall_s: float | None = None
    """Seconds without a step after which a process ends itself; None: half of distribute.timeout_s."""
    join_s: float = 300.0
    """Seconds that the hosts wait for one another at the start."""

    def __post_init__(self) -> None:
        if self.node_rank >= self.nnodes:
            raise ValueError(f"--node-rank {self.node_rank}: must be below --nnodes {self.nnodes}; number from 0")
        if self.nnodes > 1 and self.master is None:
            raise ValueError(
                f"--nnodes {self.nnodes}: the hosts don't know where to meet; give all of them --master HOST:PORT, "
                "with the address of the host of --node-rank 0 and a free port there"
            )
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or int(port) >= 2**16:
            raise ValueError(f"--master {self.master}: must be HOST:PORT, such as node-0:29500")

    @property
    def address(self) -> str:
        """Where the launchers meet; port 0 is any free one."""
        return self.master or "127.0.0.1:0"

    @property
    def world(self) -> int:
        return self.nproc * self.nnodes

    def warning(self) -> str | None:
        cores = usable_cores()
        reason = f"--nproc {self.nproc}: this host has {cores} cores, so its processes wait for one another"
        return reason if self.nproc > cores else None


class Rendezvous:
    """The launchers of all hosts, once they have joined. Their store lives as long as node 0's launcher.

    The ranks meet by the same store (`distribute.group`), under a prefix for each start.
    """

    def __init__(self, job: Job) -> None:
        """Wait for the other hosts for `job.join_s`. Raises ValueError where they can't meet, saying why."""
        self.job = job
        host, _, port = job.address.rpartition(":")
        self.host = host.strip("[]")
        until = time.monotonic() + job.join_s
        where = f"--master {job.master}"
        if job.node_rank and (reason := why_unreachable(self.host, int(port), within_s=job.join_s)):
            raise ValueError(
                f"{where}: cannot be reached ({reason}); check that the launcher of --node-rank 0 runs there and that "
                "no firewall lies between"
            )
        try:
            seconds = math.ceil(max(1.0, until - time.monotonic()))
            timeout, first = timedelta(seconds=seconds), job.node_rank == 0
            # torch for Windows is built without libuv.
            rest = {"wait_for_workers": False, "use_libuv": sys.platform != "win32"}
            # If what listens at this address is not a store, torch's store waits forever.
            self.store = with_timeout(
                lambda: TCPStore(self.host, int(port), None, first, timeout, **rest), seconds + 1.0
            )
            began = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
            self.name = self.store.compare_set("name", "", began).decode()
            twice = self.store.add(f"count/{job.node_rank}", 1) > 1
            self.store.set(f"host/{job.node_rank}", socket.gethostname())
        except (RuntimeError, OSError) as error:
            raise ValueError(
                f"{where}: the launchers can't meet there ({first_line(error)}); check that the one of --node-rank 0 "
                "runs on that host, and that no other program or earlier job has the port"
            ) from error
        if twice:
            raise ValueError(f"--node-rank {job.node_rank}: given to two launchers; number each host differently")
        nodes = range(job.nnodes)
        try:
            self.store.wait([f"host/{node}" for node in nodes], timedelta(seconds=max(0.1, until - time.monotonic())))
        except RuntimeError:
            missing = ", ".join(str(node) for node in nodes if not self.store.check([f"host/{node}"]))
            raise ValueError(
                f"--nnodes {job.nnodes}: node {missing} did not come within {job.join_s:g} s; start the launcher there "
                "too, or give --join-seconds more"
            ) from None

    def wait_for_all(self, what: str, seconds: float) -> None:
        """Wait for the launchers of all hosts to come to this point. Raises RuntimeError if one does not in time."""
        self.store.set(f"{what}/{self.job.node_rank}", "1")
        self.store.wait([f"{what}/{node}" for node in range(self.job.nnodes)], timedelta(seconds=seconds))
