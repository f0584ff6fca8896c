"""`hasten doctor --compare`: the ratio of two trainings' steps with its interval, and their losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.doctor.script.compare import compare, lines
from hasten.doctor.script.launch import run_script

SCRIPT = """
import torch
network = torch.nn.Linear(3, 1)
torch.nn.init.ones_(network.weight), torch.nn.init.zeros_(network.bias)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=SCALED)
for step in range(40):
    optimizer.zero_grad()
    loss = network(torch.ones(2, 3)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def recorded(folder: Path, seconds: list[float], losses: list[float | None], others: float = 0.0) -> Path:
    """A doctor.json of steps that take so long, and as much processor time as 1 ms each."""
    steps = [{"seconds": each, "cpu": 0.001, "parts": {}} for each in seconds]
    record = {"steps": steps, "losses": losses, "load": {"others": others}}
    folder.mkdir()
    (folder / "doctor.json").write_text(json.dumps({"records": [record]}))
    return folder


def test_a_ratio_has_an_interval_and_losses_stand_side_by_side(tmp_path: Path) -> None:
    before = recorded(tmp_path / "before", [9.0] * 3 + [0.2, 0.22] * 10, [1.0, 0.5, None, 0.25])
    after = recorded(tmp_path / "after", [9.0] * 3 + [0.1, 0.11] * 10, [1.0, 0.4, 0.3])
    result = compare(before, after / "doctor.json")
    assert (result["before_s"], result["after_s"], result["faster"]) == pytest.approx((0.21, 0.105, 2.0))
    assert 1.9 < result["interval"][0] < 2 < result["interval"][1] < 2.1
    assert result["losses"] == [[1, 1.0, 1.0], [2, 0.5, 0.4]]
    assert lines(result)[0].startswith("a step     210 ms before, 105 ms after: 2.00 times as fast [1.9")
    assert "no difference shown" in lines(compare(before, before))[0]


def test_beside_other_programs_processor_time_is_compared(tmp_path: Path) -> None:
    before = recorded(tmp_path / "before", [0.1] * 9, [])
    after = recorded(tmp_path / "after", [0.9] * 9, [], others=0.8)
    result = compare(before, after)
    assert (result["clock"], result["faster"]) == ("cpu", pytest.approx(1.0))
    assert "try again alone" in lines(result)[1]
    assert "losses     not compared" in lines(result)[-1]


@pytest.mark.parametrize("scaled", [False, True])
def test_losses_are_the_scripts_own_also_where_they_are_scaled(tmp_path: Path, scaled: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("SCALED", str(scaled)))
    run = run_script([sys.executable, str(script)], steps=12, seconds=30, quiet=True)
    losses: list[Any] = run.records[0].raw["losses"]
    assert losses[0] == pytest.approx(9.0)
    assert losses[1] == pytest.approx((3 - 0.1 * 6 * 4) ** 2)
    assert len(losses) == 12


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "doctor.json").write_text('{"verdict": "of a run"}')
    with pytest.raises(ValueError, match=r"doctor\.json: holds no watched training; .*hasten doctor --out DIR"):
        compare(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="has 3 steps, too few"):
        compare(recorded(tmp_path / "few", [0.1] * 3, []), tmp_path)


def test_the_command_prints_both(tmp_path: Path) -> None:
    before = recorded(tmp_path / "before", [0.2] * 9, [1.0, 0.5])
    result = CliRunner().invoke(app, ["doctor", "--compare", str(before), str(before)])
    assert result.exit_code == 0
    assert "loss before" in result.output
    refused = CliRunner().invoke(app, ["doctor", "data", "--compare", str(before), str(before)])
    assert refused.exit_code == 2
