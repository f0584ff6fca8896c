"""Rank and world size of this process, as set by torchrun, Horovod, MPI or SLURM, in that order."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LAUNCHER_PID = "HASTEN_LAUNCHER_PID"
_PR_SET_PDEATHSIG = 1
Launcher = Literal["none", "torchrun", "horovod", "slurm", "mpi"]

_HOROVOD = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
_SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "")
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Open MPI; MVAPICH; MPICH and Intel MPI."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The processes of a job, and this one's place among them. Without a launcher: one process, rank 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of this host."""
    local_size: int = 1
    launcher: Launcher = "none"
    restarts: int = 0
    """How often the job was restarted; if it was, it resumes from its last checkpoint."""
    host: str = ""

    @property
    def first(self) -> bool:
        """Whether this process writes what belongs to the run as a whole."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.host or socket.gethostname()}"


def detect_world(environment: Mapping[str, str] | None = None) -> World:
    """The world that the launcher's environment variables describe (by default those of this process).

    Raises ValueError naming a variable that is not a number or is out of range.
    """
    variables = os.environ if environment is None else environment
    host = socket.gethostname()
    # A job that SLURM requeued resumes, whatever started its ranks.
    queued = _number(variables, "SLURM_RESTART_COUNT", 0)
    if "RANK" in variables and "WORLD_SIZE" in variables:
        restarts = _number(variables, "TORCHELASTIC_RESTART_COUNT", 0) + queued
        return _world(variables, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "torchrun", restarts, host)
    if _HOROVOD[0] in variables:
        return _world(variables, _HOROVOD, "horovod", queued, host)
    mpi = [names for names in _MPI if names[0] in variables]
    # Within a job, mpirun starts a helper on each node by srun, whose variables its ranks inherit. They count by
    # themselves if they set the local rank too: the variables that srun sets for MPI (PMI) leave that out.
    by_mpirun = [names for names in mpi if names[2] in variables]
    if by_mpirun:
        return _world(variables, by_mpirun[0], "mpi", queued, host)
    # sbatch sets the number of tasks for the batch script too, which is one process: only srun sets the step's.
    if "SLURM_STEP_ID" in variables and "SLURM_PROCID" in variables and _number(variables, "SLURM_NTASKS", 1) > 1:
        return _world(variables, _SLURM, "slurm", queued, host)
    if mpi:
        return _world(variables, mpi[0], "mpi", queued, host)
    return World(host=host, restarts=queued)


def _world(
    variables: Mapping[str, str], names: tuple[str, str, str, str], launcher: Launcher, restarts: int, host: str
) -> World:
    rank, size = _number(variables, names[0], 0), _number(variables, names[1], 1)
    local_rank = _number(variables, names[2], 0)
    if not 0 <= rank < size:
        raise ValueError(f"{names[0]}={rank}: must be 0 to {size - 1} ({names[1]} is {size}); check the launcher")
    local_size = _number(variables, names[3], 1) if names[3] else _tasks_here(variables)
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        launcher=launcher,
        restarts=restarts,
        host=host,
    )


def _tasks_here(variables: Mapping[str, str]) -> int:
    """Tasks on this node, of SLURM's list for each node such as "2(x3),1"."""
    counts: list[int] = []
    for part in variables.get("SLURM_STEP_TASKS_PER_NODE", variables.get("SLURM_TASKS_PER_NODE", "1")).split(","):
        tasks, _, times = part.strip().rstrip(")").partition("(x")
        if tasks.isdigit():
            counts += [int(tasks)] * (int(times) if times.isdigit() else 1)
    node = _number(variables, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else 1


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(variables.get(name, default))
    except ValueError:
        raise ValueError(f"{name}={variables[name]}: must be a whole number; the launcher sets it") from None


def end_with_launcher() -> None:
    """Kill this process once its parent, which `LAUNCHER_PID` names, has gone (Linux). Without it nothing happens.

    By the kernel: at once, and also if this process is stopped or never releases the GIL. SIGKILL, as after a SIGKILL
    of a run in one process: a rank whose peers are dying can't agree with them on a step to save, and nothing that is
    written in place of something else is lost, since checkpoints appear by a rename.
    """
    pid = int(os.environ.get(LAUNCHER_PID, "0"))
    if not pid or sys.platform != "linux":
        return
    from ctypes import CDLL  # takes milliseconds of every command

    CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:
        os.kill(os.getpid(), signal.SIGKILL)
