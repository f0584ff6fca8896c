"""`hasten doctor --compare BEFORE AFTER`: seconds a step and loss curves of two watched trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hasten.doctor.finding import ms
from hasten.doctor.script.doctor import LEAST_STEPS
from hasten.doctor.script.records import ProcessRecord, as_record
from hasten.files import expanded
from hasten.observe.cpu_load import BUSY

_DRAWS, _WITHIN = 2000, (2.5, 97.5)
"""Samples of steps with replacement, and the percentiles of what they give: a 95 % interval."""
_ROWS = 10
"""Steps whose losses are shown, at most."""


def compare(before: str | Path, after: str | Path) -> dict[str, Any]:
    """What two `doctor.json` of scripts, or the folders that hold them, say of their steps.

    "before_s" and "after_s": mean seconds of a step. "faster": their ratio, with its 95 % "interval" over the steps.
    "clock": "seconds", or "cpu" of the training's thread where other programs used the cores. "losses": [step, before,
    after], as far as both went; empty where one gave none. Raises ValueError for a file that is missing or holds no
    watched training.
    """
    records = [_record(path) for path in (before, after)]
    is_busy = any((record.listed_dict("load").get("others") or 0.0) > BUSY and not record.on_gpu for record in records)
    clock = "cpu" if is_busy else "seconds"
    seconds = [np.array([step[clock] for step in record.measured]) for record in records]
    draws = np.random.default_rng(0)
    means = [draws.choice(each, (_DRAWS, len(each))).mean(1) for each in seconds]
    losses = [record.raw.get("losses", []) for record in records]
    return {
        "clock": clock,
        "before_s": float(seconds[0].mean()),
        "after_s": float(seconds[1].mean()),
        "faster": float(seconds[0].mean() / seconds[1].mean()),
        "interval": np.percentile(means[0] / means[1], _WITHIN).tolist(),
        "steps": [len(each) for each in seconds],
        "losses": [[step, *pair] for step, pair in enumerate(zip(*losses, strict=False), 1) if None not in pair],
    }


def lines(result: dict[str, Any]) -> list[str]:
    """`compare`'s result for a terminal."""
    low, high = result["interval"]
    times = f"{result['faster']:.2f} times as fast [{low:.2f}, {high:.2f}]"
    if low <= 1 <= high:
        times = f"no difference shown: {times}"
    steps = " and ".join(map(str, result["steps"]))
    kind = "" if result["clock"] == "seconds" else " of processor time"
    both = f"{ms(result['before_s'])} before, {ms(result['after_s'])} after{kind}"
    texts = [f"a step     {both}: {times}, over {steps} steps"]
    if kind:
        texts.append("           other programs used the cores meanwhile, so that waits are left out: try again alone")
    losses = result["losses"]
    if not losses:
        return [*texts, "losses     not compared: a training showed none (a scalar on which backward() is called)"]
    shown = sorted({round(each) for each in np.linspace(0, len(losses) - 1, min(_ROWS, len(losses)))})
    texts += ["", f"{'step':>6}{'loss before':>16}{'after':>12}"]
    return texts + [f"{losses[at][0]:6}{losses[at][1]:16.4g}{losses[at][2]:12.4g}" for at in shown]


def _record(path: str | Path) -> ProcessRecord:
    """The training of rank 0."""
    file = expanded(path)
    file = file / "doctor.json" if file.is_dir() else file
    try:
        (raw, *_) = json.loads(file.read_text(encoding="utf-8"))["records"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: holds no watched training; write one with hasten doctor --out DIR -- python train.py"
        ) from error
    record = as_record(raw)
    if record.steps <= LEAST_STEPS:
        raise ValueError(f"{file}: has {record.steps} steps, too few to compare; watch more --steps")
    return record
