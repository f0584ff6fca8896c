"""Folders that a prediction is made from: logs, and the run of one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from hasten.engine.checkpoint import write_checkpoint
from tests.study.scale.studies import csv_log

WEIGHTS = 1_000_000


def write_logs(folder: Path, epochs: Mapping[int, float], *, strategy: str = "") -> Path:
    """One CSV a count of workers, whose epochs take these seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    infix = f"{strategy}_" if strategy else ""
    for workers, seconds in epochs.items():
        csv_log(folder, f"log_{infix}{workers}.csv", seconds)
    return folder


def write_run(
    folder: Path,
    *,
    step_s: float = 0.2,
    jitter: float = 0.0,
    lines: int = 9,
    batch: int = 64,
    settings: str = "",
    wait_share: float = 0.0,
    checkpoint: bool = True,
) -> Path:
    """The folder of a finished run of one process: 10 steps between lines, of step_s, a jitter more or less in turn."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "run.yaml").write_text(f"sample:\n  batch_size: {batch}\n{settings}")
    with (folder / "metrics.jsonl").open("w") as file:
        for line in range(lines):
            seconds = 50.0 if line == 0 else step_s * (1 + jitter * (-1) ** line)
            record = {"kind": "train", "step": 10 * (line + 1), "time_s": 10.0 * line, "loss": 1.0, "lr": 0.1,
                      "samples_per_s": batch / seconds, "wait_share": wait_share}  # fmt: skip
            file.write(json.dumps(record) + "\n")
    train = 10 * lines * step_s
    summary = {
        "status": "finished", "name": "Phantoms", "steps": 10 * lines, "cases": {"train": 10 * batch, "validation": 8},
        "seconds": {"total": train + 12, "train": train, "wait_for_data": 0.0, "validate": 4.5, "checkpoint": 0.9},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    if checkpoint:
        weights = {"weight": torch.zeros(WEIGHTS), "count": torch.zeros((), dtype=torch.long)}
        write_checkpoint(folder / "checkpoints" / "last.pt", {"network": weights})
    return folder
