"""The description of a launch: how many processes on how many hosts, and the address of the rendezvous."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
    rdzv_id: str = "hasten"
    """Distinguishes this job from others with the same rendezvous address."""
    stall_s: float | None = None
    """Seconds without a step after which a process ends itself, or is killed where it is stopped (SIGSTOP).

    None: processes take half of distribute.timeout_s, and one that is stopped is killed when another has failed.
    """
    join_s: float = 300.0
    """Seconds that the hosts wait for one another at the start."""

    def __post_init__(self) -> None:
        mistakes = _mistakes(self)
        if mistakes:
            raise ValueError("\n".join(mistakes))

    def address(self) -> tuple[str, int]:
        """Host and port where the launchers meet; port 0 is any free one."""
        if self.master is None:
            return "127.0.0.1", 0
        host, _, port = self.master.rpartition(":")
        return host.strip("[]"), int(port)

    def warning(self) -> str | None:
        cores = usable_cores()
        reason = f"--nproc {self.nproc}: this host has {cores} cores, so its processes wait for one another"
        return reason if self.nproc > cores else None


def _mistakes(job: Job) -> list[str]:
    messages = []
    if job.nproc < 1:
        messages.append(f"--nproc {job.nproc}: must be 1 or more")
    if job.nnodes < 1:
        messages.append(f"--nnodes {job.nnodes}: must be 1 or more")
    elif not 0 <= job.node_rank < job.nnodes:
        messages.append(
            f"--node-rank {job.node_rank}: must be 0 to {job.nnodes - 1}, as --nnodes is {job.nnodes}; "
            "number the hosts from 0"
        )
    if job.nnodes > 1 and job.master is None:
        messages.append(
            f"--nnodes {job.nnodes}: the hosts don't know where to meet; give all of them --master HOST:PORT, "
            "with the address of the host of --node-rank 0 and a free port there"
        )
    if job.master is not None:
        host, colon, port = job.master.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            messages.append(f"--master {job.master}: must be HOST:PORT, such as node-0:29500")
    if job.max_restarts < 0:
        messages.append(f"--max-restarts {job.max_restarts}: must be 0 or more")
    for name, seconds in (("--stall-seconds", job.stall_s), ("--join-seconds", job.join_s)):
        if seconds is not None and not seconds > 0:
            messages.append(f"{name} {seconds:g}: must be above 0")
    if not job.rdzv_id:
        messages.append("--rdzv-id: is empty; leave it out or give a name")
    return messages
