"""The world as each launcher tells of it."""

from __future__ import annotations

import socket

import pytest

from hasten.distribute.world import World, detect_world

HERE = socket.gethostname()
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
HOROVOD = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "7",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4,3(x1),2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL_MPI = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("message", "rank", "size", "local_rank", "local_size", "launcher"),
    [
        ({}, 0, 1, 0, 1, "none"),
        (TORCHRUN, 5, 8, 1, 4, "torchrun"),
        (HOROVOD, 2, 4, 0, 2, "horovod"),
        (SLURM, 7, 9, 0, 2, "slurm"),
        (OPEN_MPI, 1, 2, 1, 2, "mpi"),
        (INTEL_MPI, 3, 4, 1, 2, "mpi"),
        ({name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()}, 1, 2, 1, 2, "mpi"),
        # mpirun in a job of SLURM: its ranks inherit what srun told the helper of their node. srun that speaks PMI
        # tells PMI's rank and size, and the place on the host in SLURM's own variables only.
        (SLURM | OPEN_MPI, 1, 2, 1, 2, "mpi"),
        (SLURM | {"PMI_RANK": "7", "PMI_SIZE": "9"}, 7, 9, 0, 2, "slurm"),
        # torchrun in a job of SLURM, and Horovod by mpirun: the inner one counts.
        (SLURM | TORCHRUN, 5, 8, 1, 4, "torchrun"),
        (OPEN_MPI | HOROVOD, 2, 4, 0, 2, "horovod"),
        # A batch script is one process, however many tasks it may start.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "9", "SLURM_JOB_ID": "3"}, 0, 1, 0, 1, "none"),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, 0, 1, 0, 1, "none"),
        ({"RANK": "2", "WORLD_SIZE": "3"}, 2, 3, 0, 1, "torchrun"),
        # Half of what torchrun sets is not it.
        ({"RANK": "1"}, 0, 1, 0, 1, "none"),
    ],
)
def test_every_launcher_is_understood(
    message: dict[str, str], rank: int, size: int, local_rank: int, local_size: int, launcher: str
) -> None:
    assert detect_world(message) == World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        launcher=launcher,  # type: ignore[arg-type]
        host=HERE,
    )


@pytest.mark.parametrize(("node", "tasks"), [(0, 4), (1, 3), (2, 3), (3, 1)])
def test_slurm_tells_the_tasks_of_each_node(node: int, tasks: int) -> None:
    output = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4,3(x2),1", "SLURM_NODEID": str(node)}
    assert detect_world(output).local_size == tasks


def test_how_often_it_was_started_before() -> None:
    assert detect_world(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}).restarts == 2
    assert detect_world(SLURM | {"SLURM_RESTART_COUNT": "3"}).restarts == 3
    assert detect_world(OPEN_MPI | {"SLURM_RESTART_COUNT": "3"}).restarts == 3
    assert detect_world({"SLURM_RESTART_COUNT": "1"}).restarts == 1


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (TORCHRUN | {"RANK": "first"}, "RANK=first"),
        (TORCHRUN | {"RANK": "8"}, "RANK=8: must be 0 to 7 (WORLD_SIZE is 8)"),
        (TORCHRUN | {"RANK": "-1"}, "RANK=-1"),
        (HOROVOD | {"HOROVOD_SIZE": ""}, "HOROVOD_SIZE="),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2"),
    ],
)
def test_a_variable_that_cannot_be_is_named(message: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError) as error:
        detect_world(message)
    assert named in str(error.value)
    assert "launcher" in str(error.value)


def test_this_process_is_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    world = detect_world()
    assert (world.rank, world.first) == (5, False)
    assert str(world) == f"rank 5 of 8 on {HERE}"
    assert World().first
