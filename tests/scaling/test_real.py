"""A study with real trainings, from the command line to the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.config.load import dump_run
from hasten.observe.cores import usable_cores
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import config_of


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="two workers need two cores")
def test_a_study_of_real_runs(tmp_path: Path) -> None:
    source = write_phantoms(tmp_path / "set", num_cases=6, shape=(20, 24, 20))
    yaml = tmp_path / "run.yaml"
    yaml.write_text(dump_run(config_of(source, tmp_path / "cache", "sample.batch_size=4", "network.dropout=0.0")))
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "hasten",
        "scale",
        str(yaml),
        "--worlds",
        "1,2",
        "--threads",
        "1",
        "--out",
        str(out),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    first = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert first.returncode == 0, first.stderr
    output = json.loads((out / "scaling.json").read_text())
    assert [(run["strategy"], run["world"]) for run in output["runs"]] == [("single", 1), ("ddp", 2)]
    # The batch is the same on both, so the training is too.
    one, two = (run["metric"] for run in output["runs"])
    assert two == pytest.approx(one, abs=0.02)
    assert all(run["machine"]["threads"] == "1" for run in output["runs"])
    assert (out / "scaling.html").is_file()
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == 2
