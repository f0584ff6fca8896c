"""Small run directories, as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CONFIG = """\
data:
  source: data/hippocampus
sample:
  patch: [40, 56, 40]
  batch_size: 8
train:
  steps: 400
  learning_rate: 0.003
  target: 0.87
"""

DECISIONS = {
    "sample.patch": {"value": [40, 56, 40], "reason": "the 90th percentile of the shapes, in multiples of 8"},
    "sample.batch_size": {"value": 8, "reason": "largest that fits the memory budget"},
    "prepare.intensity": {"value": "zscore", "reason": "modality is MRI"},
    "network.strides": {"value": [[2, 2, 2], [2, 2, 2]], "reason": "every axis stays above 4 voxels"},
    "cache.dir": {"value": None, "reason": "not set"},
}

ACCELERATORS = {
    "bf16": {"on": True, "set_by": "measured", "reason": "fastest of 4 measured: 194 ms against 314 ms"},
    "compile": {"on": False, "set_by": "measured", "reason": "would take 41 s and save 12 s in 400 steps"},
}


def metric_lines(*, steps: int, every: int, speed: float, final: float) -> list[dict[str, Any]]:
    """Loss falling and Dice rising to `final`; `speed` is steps per second."""
    lines: list[dict[str, Any]] = []
    for step in range(5, steps + 1, 5):
        time_s = round(10 + step / speed, 3)
        share = step / steps
        loss = round(0.12 + 1.4 * float(np.exp(-6 * share)) + 0.02 * float(np.sin(step)), 4)
        lines.append(
            {"kind": "train", "step": step, "time_s": time_s, "loss": loss, "lr": 1e-3, "samples_per_s": 8 * speed,
             "wait_share": 0.016}
        )  # fmt: skip
        if step % every == 0:
            dice = final * (1 - float(np.exp(-6 * share)))
            per_class = {"Anterior": round(dice + 0.01, 4), "Posterior": round(dice - 0.01, 4)}
            lines.append(
                {"kind": "validation", "step": step, "time_s": time_s + 0.5, "dice": round(dice, 4),
                 "dice_per_class": per_class, "seconds": 0.5}
            )  # fmt: skip
    return lines


def example_arrays(count: int = 2) -> dict[str, Any]:
    rows, columns = np.mgrid[:24, :32]
    arrays: dict[str, Any] = {}
    for index in range(count):
        label = ((rows - 12) ** 2 + (columns - 12) ** 2 < 60).astype(np.uint8)
        label[(rows - 12) ** 2 + (columns - 20) ** 2 < 30] = 2
        arrays[f"image_{index}"] = ((rows + columns) / 60).astype(np.float32)
        arrays[f"label_{index}"] = label
        arrays[f"prediction_{index}"] = np.roll(label, 1, axis=1)
        arrays[f"name_{index}"] = np.array(f"case_{index:03d}")
        arrays[f"dice_{index}"] = np.array(0.8 + index / 20)
        arrays[f"which_{index}"] = np.array(["worst", "best"][index % 2])
        arrays[f"where_{index}"] = np.array(f"axial slice {index + 9} of 32")
        arrays[f"pixel_{index}"] = np.array([1.0, 0.5])
    return arrays


def write_run(
    folder: Path,
    *,
    name: str = "hippocampus",
    steps: int = 400,
    speed: float = 5.0,
    final: float = 0.88,
    target: float | None = 0.87,
    examples: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> Path:
    """A finished run; `summary` replaces entries of summary.json."""
    folder.mkdir(parents=True)
    lines = metric_lines(steps=steps, every=max(5, steps // 20), speed=speed, final=final)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    validations = [line for line in lines if line["kind"] == "validation"]
    reached = [line["time_s"] for line in validations if target is not None and line["dice"] >= target]
    best = max(validations, key=lambda line: line["dice"])
    train_s = steps / speed * 0.9
    whole = {
        "status": "target_reached" if reached else "finished",
        "name": name,
        "target": {
            "metric": "mean_dice", "value": target, "reached": bool(reached), "time_s": reached[0] if reached else None,
        },
        "best": {"metric": "mean_dice", "value": best["dice"], "step": best["step"]},
        "seconds": {
            "total": lines[-1]["time_s"] + 3, "import": 2.4, "read_plan": 0.9, "prepare": 2.2, "tune": 3.1,
            "compile": 0.0, "train": train_s, "validate": steps / speed * 0.08, "checkpoint": 0.6,
            "wait_for_data": train_s * 0.016,
        },
        "steps": steps,
        "samples_per_s": 8 * speed,
        "wait_share": 0.016,
        "earlier_seconds": 0.0,
        "accelerators": ACCELERATORS,
        "environment": {},
        "cases": {"train": 158, "validation": 52},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(whole | (summary or {})))
    fingerprint = {"name": "Hippocampus", "labels": {"0": "background", "1": "Anterior", "2": "Posterior"}}
    (folder / "plan.json").write_text(json.dumps({"fingerprint": fingerprint, "decisions": DECISIONS}))
    environment = {"hasten": "0.1.0", "torch": "2.13.0", "cpu": {"name": "some CPU"}, "ram_bytes": 8 << 30}
    (folder / "env.json").write_text(json.dumps(environment))
    (folder / "run.yaml").write_text(CONFIG)
    np.savez_compressed(folder / "examples.npz", **(example_arrays() if examples is None else examples))
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("folder", **changes)` writes a finished run below the test's own folder."""

    def make(folder: str = "run", **changes: Any) -> Path:
        return write_run(tmp_path / folder, **changes)

    return make
