"""Ranks that mpirun starts: found by its variables, and trained together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hasten.config.load import dump_run
from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import World, detect_world
from hasten.observe.rundir import SUMMARY_JSON, read_jsonl
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import config_of, metrics

needs_open_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: apt-get install openmpi-bin)"
)
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
SRUN = {
    "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip


def place(environment: dict[str, str]) -> tuple[str, int, int, int, int]:
    world = detect_world(environment)
    return world.launcher, world.rank, world.size, world.local_rank, world.local_size


@pytest.mark.parametrize(
    "environment",
    [
        OPEN_MPI,
        {name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()},
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    ],
    ids=["Open MPI", "MVAPICH", "MPICH"],
)
def test_each_mpi_tells_its_ranks(environment: dict[str, str]) -> None:
    assert place(environment) == ("mpi", 3, 4, 1, 2)
    # mpirun within a job of SLURM: its ranks inherit what srun told the helper of their node.
    assert place({**SRUN, **environment}) == ("mpi", 3, 4, 1, 2)


def test_srun_that_speaks_pmi_is_srun() -> None:
    """It tells PMI's rank and size, and the place on the host in SLURM's own variables only."""
    assert place({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}) == ("slurm", 1, 2, 0, 1)


@pytest.mark.parametrize(
    "environment", [OPEN_MPI, SRUN, {"RANK": "0", "WORLD_SIZE": "2"}, {}], ids=lambda given: str(len(given))
)
def test_a_job_that_was_queued_again_goes_on_whatever_starts_its_ranks(environment: dict[str, str]) -> None:
    assert detect_world(environment).restarts == 0
    assert detect_world({**environment, "SLURM_RESTART_COUNT": "2"}).restarts == 2


def test_several_hosts_need_a_place_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    world = World(rank=3, size=4, local_rank=1, local_size=2, launcher="mpi", host="b")
    with (
        pytest.raises(ValueError, match=r"MASTER_ADDR, MASTER_PORT: .*mpirun -x MASTER_ADDR=HOST"),
        process_group(world, DistributeConfig(), torch.device("cpu")),
    ):
        pass


def mpirun(folder: Path, command: Sequence[str], *, seconds: float) -> str:
    """Standard output of two ranks; they are ended after `seconds`."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "OMPI_ALLOW_RUN_AS_ROOT": "1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": str(folder)}  # fmt: skip
    whole = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,tcp", "-np", "2", *command]
    process = subprocess.Popen(whole, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        out, error = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, error
    return out


@needs_open_mpi
def test_open_mpi_tells_what_is_looked_for(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from hasten.distribute.world import detect_world;"
        "world = detect_world(); found = [world.launcher, world.size, world.local_rank, world.local_size];"
        "Path(sys.argv[1], f'rank-{world.rank}').write_text(json.dumps(found))"
    )

    mpirun(tmp_path, [sys.executable, "-c", code, str(tmp_path)], seconds=60)

    for rank in (0, 1):
        assert json.loads((tmp_path / f"rank-{rank}").read_text()) == ["mpi", 2, rank, 2]


@pytest.mark.slow
@pytest.mark.timeout(700)
@needs_open_mpi
def test_two_ranks_of_mpirun_train_together(tmp_path: Path) -> None:
    source = write_phantoms(tmp_path / "data", num_cases=6, shape=(16, 20, 20), spacing=(1.0, 1.0, 1.0))
    config = config_of(source, tmp_path / "cache", "sample.batch_size=4", "observe.monitor_every=0")
    (tmp_path / "run.yaml").write_text(dump_run(config))
    out = tmp_path / "out"

    said = mpirun(
        tmp_path,
        [sys.executable, "-m", "hasten", "train", str(tmp_path / "run.yaml"), "--out", str(out)],
        seconds=600,
    )

    summary = json.loads((out / SUMMARY_JSON).read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 14)
    assert said.count("best Dice") == 1  # one of the ranks speaks
    assert metrics(out, "train")
    assert read_jsonl(out / "ranks" / "rank-1.jsonl")[-1]["step"] == 14
