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

from hasten.config.load import dump_run
from hasten.observe.rundir import SUMMARY_JSON, read_jsonl
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import config_of, metrics

needs_open_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: apt-get install openmpi-bin)"
)


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
