from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.ladder.task import Task, read_task, task_of, write_task
from hasten.config.load import from_dict
from hasten.config.schema import RunConfig
from hasten.recipes.recipe import PeerSettings


def config_of(task: Task, cache: Path, **train: object) -> RunConfig:
    config = from_dict(task.run, where="test")
    return dataclasses.replace(
        config,
        cache=dataclasses.replace(config.cache, dir=str(cache)),
        network=task.network,
        train=dataclasses.replace(config.train, **{"target": 0.8, **train}),
    )


@pytest.mark.parametrize("regions", [{}, {"whole": (1, 2), "core": (2,)}], ids=["classes", "regions"])
def test_a_run_as_a_task(regions: dict[str, tuple[int, ...]], make_task: Callable[..., Task], tmp_path: Path) -> None:
    made = make_task(regions=regions, network=make_task().network)
    task = task_of(config_of(made, tmp_path), PeerSettings(crops=3), name="n")
    assert [case.id for case in task.train] == ["case_000", "case_001", "case_002"]
    assert task.validation == made.validation
    assert (task.name, task.target, task.patch, task.roi) == ("n", 0.8, (8, 16, 16), (8, 16, 16))
    assert (task.patches_per_epoch, task.schedule) == (9, 8)
    assert task.regions == regions
    assert task.spacing is None
    # DiceCE of MONAI knows no classes that overlap.
    assert task.peer.loss == ("dice_focal" if regions else "dice_ce")
    assert read_task(write_task(tmp_path / "t.json", task)) == task
    assert from_dict(task.run, where="x").train.steps == 4


def test_tasks_that_cannot_be(make_task: Callable[..., Task], tmp_path: Path) -> None:
    task = make_task()
    with pytest.raises(ValueError, match=r"train\.target"):
        task_of(config_of(task, tmp_path, target=None))
    config = config_of(task, tmp_path)
    with pytest.raises(ValueError, match="label 9 is ignored, which the other arms can't do"):
        task_of(dataclasses.replace(config, data=dataclasses.replace(config.data, ignore=9)))
    with pytest.raises(ValueError, match=r"peer\.roi: \[9, 16, 16\] is not a multiple of \[2, 4, 4\]"):
        task_of(config_of(task, tmp_path), PeerSettings(roi=(9, 16, 16)))
    deep = dataclasses.replace(task.network, name="dynunet", deep_supervision=1)
    with pytest.raises(ValueError, match="one output"):
        task_of(dataclasses.replace(config_of(task, tmp_path), network=deep))
    (tmp_path / "t.json").write_text('{"name": 3}')
    with pytest.raises(ValueError, match=r"t\.json: not a task"):
        read_task(tmp_path / "t.json")
    with pytest.raises(ValueError, match=r"no\.json: cannot be read"):
        read_task(tmp_path / "no.json")
