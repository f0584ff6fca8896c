from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.ladder.task import PeerSettings, Task, TaskCase, write_task
from hasten.config.load import load_run, to_dict
from hasten.config.schema import PrepareConfig
from hasten.config.settled import PlannedNetwork
from tests.boxes import write_boxes

TINY = PlannedNetwork(
    name="unet", channels=(4, 8, 8), strides=((1, 2, 2), (2, 2, 2)), num_res_units=0, norm="instance", act="prelu"
)
FLAT = dataclasses.replace(TINY, strides=((1, 2, 1), (1, 2, 2)))


@pytest.fixture(scope="session")
def make_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Task]:
    """A task of four small cases; keywords replace its fields."""

    def make(
        *, shape: tuple[int, ...] = (30, 26, 20), channels: int = 1, values: tuple[int, int] = (1, 2), **changes: Any
    ) -> Task:
        data = write_boxes(
            tmp_path_factory.mktemp("set") / "set", count=4, shape=shape, channels=channels, values=values
        )
        names = [f"case_{index:03d}" for index in range(4)]
        cases = tuple(
            TaskCase(
                id=name,
                image=(str(data / "imagesTr" / f"{name}.nii.gz"),),
                label=str(data / "labelsTr" / f"{name}.nii.gz"),
            )
            for name in names
        )
        settings: dict[str, Any] = {
            "name": "boxes",
            "train": cases[:3],
            "validation": cases[3:],
            "labels": {0: "background", **{value: f"class{value}" for value in values}},
            "channels": tuple("MRI" for _ in range(channels)),
            "prepare": PrepareConfig(
                spacing=(0.0, 0.0, 0.0), intensity="zscore", window=(0.0, 1.0), crop_foreground=False
            ),
            "network": TINY,
            "target": 0.99,
            "patch": (8, 16, 16),
            "roi": (8, 16, 16),
            "peer": PeerSettings(crops=2),
            "schedule": 12,
        }
        settings |= changes
        task = Task(run={}, **settings)
        return dataclasses.replace(task, run=run_of(task, data))

    return make


def run_of(task: Task, data: Path) -> dict[str, Any]:
    """A run of Hasten's on the same cases that takes seconds."""
    config = load_run(None, [
        f"data.source={data}", "data.split.by=list", f"data.split.validation={[case.id for case in task.validation]}",
        f"sample.patch={list(task.patch)}", "sample.batch_size=2", "train.steps=4",
        "train.validate_every=2", "train.precision=fp32", "train.channels_last=false", "train.compile=false",
        f"train.metric={task.metric}",
    ])  # fmt: skip
    tree = to_dict(config) | {"prepare": dataclasses.asdict(task.prepare)}
    tree["data"] |= {"spatial_dims": task.spatial_dims, "regions": dict(task.regions) or None}
    plain: dict[str, Any] = json.loads(json.dumps(tree))
    return plain


@pytest.fixture
def run_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs an arm's main in this process, on one thread, and gives its result."""
    for name in ("HASTEN_CACHE", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))  # some arms set them for their whole process
    threads = torch.get_num_threads()

    def run(main: Callable[[list[str]], None], task: Task, *flags: str, seconds: float = 1e6) -> dict[str, Any]:
        out = tmp_path / "result.json"
        write_task(tmp_path / "task.json", task)
        # The clock began with the process, which has run other tests.
        main([
            "--task", str(tmp_path / "task.json"), "--out", str(out), "--max-seconds", str(seconds), "--threads", "1",
            "--workers", "1", "--device", "cpu", *flags,
        ])  # fmt: skip
        content: dict[str, Any] = json.loads(out.read_text())
        return content

    yield run
    from monai.data import set_track_meta
    from monai.utils import set_determinism

    set_track_meta(True)
    set_determinism(None)
    torch.set_num_threads(threads)
