"""Folders of scaling logs, as small as they can be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

COLUMNS = ("", "time_per_epoch", "loss", "lr", "training_time", "test_time", "iou")


def csv_log(
    folder: Path, name: str, epoch_s: float, *, iou: float | str = 0.9, epochs: int = 6, first_s: float | None = None
) -> Path:
    """A log whose first epoch takes `first_s` and every other one `epoch_s`."""
    times = [first_s if first_s is not None else 1.5 * epoch_s, *[epoch_s] * (epochs - 1)]
    rows = [
        f"{number},{seconds},{1 / (number + 1)},0.001,{sum(times)},1.5,{iou}" for number, seconds in enumerate(times)
    ]
    path = folder / name
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def run_folder(
    folder: Path,
    *,
    samples_per_s: float,
    dice: Sequence[float] = (0.5, 0.8),
    world: int = 1,
    strategy: str = "single",
    seed: int = 0,
    status: str = "finished",
    total_s: float = 60.0,
    train: Mapping[str, Any] | None = None,
    cores: int = 2,
) -> Path:
    """A run of Hasten: 10 cases, batches of 5, 4 epochs; the first epoch goes at half the pace of the others."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    clock = 5.0
    for step in range(1, 9):
        pace = samples_per_s / 2 if step <= 2 else samples_per_s
        clock += 5 / pace
        lines.append(
            {"kind": "train", "step": step, "time_s": clock, "loss": 1 / step, "lr": 0.1, "samples_per_s": pace}
        )
    for number, value in enumerate(dice, start=1):
        lines.append({"kind": "validation", "step": 4 * number, "time_s": 10.0 * number, "dice": value})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "status": status,
        "best": {"metric": "mean_dice", "value": max(dice), "step": 8},
        "steps": 8,
        "seconds": {"total": total_s, "train": total_s / 2},
        "samples_per_s": samples_per_s,
        "cases": {"train": 10, "validation": 2},
        "world": {"size": world, "strategy": strategy},
        "environment": {"cpu": "a CPU", "cores_usable": cores, "torch": {"devices": []}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    settings = {
        "sample": {"batch_size": 5},
        "train": {"seed": seed, "learning_rate": 0.1, "device": "cpu", "precision": "fp32", **(train or {})},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    return folder


def entry(folder: str, world: int, **fields: Any) -> dict[str, Any]:
    """Of scale.json."""
    strategy = "single" if world == 1 else "ddp"
    return {"world": world, "strategy": strategy, "seed": 0, "mode": "strong", "folder": folder, "status": "finished",
            **fields}  # fmt: skip


def list_runs(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    (folder / "scale.json").write_text(json.dumps({"runs": list(entries)}))
