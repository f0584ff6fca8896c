"""What a rank does for test_ranks.py: trainings of several ranks in a row, and mistakes."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.config.schema import DistributeConfig
from hasten.distribute.consensus import OtherRankFailed
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
from hasten.training.run import train
from hasten.training.stop import Stopped
from tests.distribute.ranks import tell
from tests.training.runs import at_step, config_of

PLAIN = ("sample.batch_size=4", "network.dropout=0", "observe.trackers=[]", "distribute.timeout_s=300", "train.steps=8")
PARTS = (*PLAIN, "distribute.parts=2", "distribute.exchange_every=2")
STAGED = (*PLAIN, "sample.stages=[[0.5, 0.5]]", "train.accumulate=2")
TUNED = (*PLAIN, "train.freeze=[model.0.*]", "train.lr_scale={model.1.*: 0.1}")
DROPOUT = ("sample.batch_size=4", "observe.trackers=[]", "distribute.timeout_s=300")


def configs(source: Path, cache: Path) -> dict[str, Any]:
    """Runs that one process and two must agree on. Two train the first before the last, which starts from it."""
    tuned = (*TUNED, f"network.weights={source.parent / 'plain'}")
    return {
        name: config_of(source, cache, *given)
        for name, given in (("plain", PLAIN), ("parts", PARTS), ("staged", STAGED), ("tuned", tuned))
    }


def mistake(folder: Path, *overrides: str) -> str:
    """What this rank tells of a run that can't be: its message, `silent` if another one tells, or `trained`."""
    try:
        train(config_of(folder / "data", folder / "cache", *PLAIN, *overrides), folder / "wrong")
    except ValueError as error:
        return str(error)
    except OtherRankFailed:
        return "silent"
    return "trained"


def interrupted(folder: Path) -> dict[str, Any]:
    """A run with a dropout, stopped by a signal to the last rank and gone on with."""
    config, world = config_of(folder / "data", folder / "cache", *DROPOUT, "train.steps=24"), detect_world()
    whole = train(config, folder / "whole")
    with at_step(2, "interrupt") if world.rank else nullcontext(), pytest.raises(Stopped) as stopped:
        train(config, folder / "stopped")
    resumed = train(config, folder / "stopped", resume=True)
    return {"code": stopped.value.exit_code, "steps": [whole["steps"], resumed["steps"]]}


def main(folder: Path) -> None:
    world = detect_world()
    with process_group(world, DistributeConfig(timeout_s=300), torch.device("cpu")):
        results: dict[str, Any] = {}
        for name, config in configs(folder / "data", folder / "cache").items():
            results[name] = train(config, folder / name)["steps"]
        results["interrupted"] = interrupted(folder)
        results["odd batch"] = mistake(folder, "sample.batch_size=3")
        results["few cases"] = mistake(folder, "data.split.fraction=0.8")
        results["other data"] = mistake(folder, *(["data.split.seed=1"] if world.rank else []))
        results["broken data"] = mistake(folder, *([f"data.source={folder / 'gone'}"] if world.rank else []))
        results["left"] = sorted(path.name for path in folder.glob("wrong/*"))
        tell(results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
