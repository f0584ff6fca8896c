"""Loss curves of small runs, kept: a change of the sampling, the network or the step that nobody meant shows here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hasten.config.load import load_run
from hasten.observe.rundir import METRICS_JSONL, read_jsonl
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train

FILE = Path(__file__).with_name("golden_losses.json")
"""Loss of each of 12 steps, by name. `python -m tools.golden_losses` writes it."""
SETTINGS = (
    "train.steps=12", "train.validate_every=12", "train.checkpoint_every=12", "train.precision=fp32",
    "train.channels_last=false", "train.compile=false", "train.device=cpu",
    "sample.batch_size=2", "network.name=unet", "network.channels=[4,8]", "observe.trackers=[]",
    "observe.monitor_every=0",
)  # fmt: skip
RUNS: dict[str, tuple[tuple[int, int, int], tuple[str, ...]]] = {
    "3-D, default": ((24, 32, 32), ("sample.patch=[16,16,16]", "network.strides=[[2,2,2]]")),
    "3-D, nnunet": ((24, 32, 32), ("sample.patch=[16,16,16]", "network.strides=[[2,2,2]]", "augment.preset=nnunet")),
    "3-D, stages": (
        (24, 32, 32),
        ("sample.patch=[16,16,16]", "network.strides=[[2,2,2]]", "sample.stages=[[0.5,0.5]]", "train.optimizer=adamw"),
    ),
}


def losses(name: str, folder: Path) -> list[float]:
    shape, settings = RUNS[name]
    data = write_phantoms(folder / "data", num_cases=4, shape=shape)
    config = load_run(None, [f"data.source={data}", f"cache.dir={folder / 'cache'}", *SETTINGS, *settings])
    train(config, folder / "run")
    return [line["loss"] for line in read_jsonl(folder / "run" / METRICS_JSONL) if line["kind"] == "train"]


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_that_were_kept(name: str, tmp_path: Path) -> None:
    # Rounding differs between processors, and twelve steps amplify it.
    assert losses(name, tmp_path) == pytest.approx(json.loads(FILE.read_text())[name], rel=2e-3)
