"""Hasten's arm of `benchmarks.time_to_dice`: `hasten.engine.run.train` from an empty cache, in a process of its own.

Same flags and result file as the peers, the same network, split and preparation of cases. What a run of Hasten decides
for itself (patch, batch, schedule, precision) it decides here too, unless a flag or an `a.b=value` override says it.
The prepared cases, the measurements and the compiled kernels of earlier runs are out of its reach, so that all three
are in the clock. Dice is of the averaged weights, on the prepared voxels, as the peers' is: a case's classes first,
then the cases.
Without resampling these are the peers' voxels; for CT Hasten crops before it resamples and the peers after, so
that the grids differ by fractions of a voxel (`benchmarks.rescore` scores both in the files' own voxels).
An epoch here is as many patches as one of the peers' holds: `--samples` of every training case.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.ours.fill import prepare_config
from benchmarks.peers.common import (
    SPLEEN_SPACING,
    Record,
    arm_parser,
    list_cases,
    read_split,
    since_start,
)

CHANNELS, STRIDES = (16, 32, 64, 128), ((2, 2, 2),) * 3
"""Of `benchmarks.peers.common.network`."""
Row = dict[str, str]
STOPPED = {"target_reached": "target", "time_up": "max_seconds", "finished": "schedule", "interrupted": "interrupted"}
"""Hasten's word for how a run ended to the peers'."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv)
    record = Record("hasten", given, str(__doc__))
    with tempfile.TemporaryDirectory() as fresh:
        # Set before torch is imported, so that nothing of an earlier run is found.
        os.environ["HASTEN_CACHE"] = str(Path(fresh) / "cache")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(fresh) / "inductor")
        with nullcontext(given.run) if given.run else tempfile.TemporaryDirectory() as run:
            train_and_record(given, record, Path(run))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arm_parser(str(__doc__).splitlines()[0])
    parser.add_argument("--run", type=Path, help="keep the run directory here; new or empty")
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help="settings, such as train.steps=400")
    given = parser.parse_args(argv)
    if given.max_epochs is not None:
        parser.error("--max-epochs: Hasten's schedule is in steps; give train.steps=N instead")
    return given


def settings(given: argparse.Namespace, rows: list[Row], parts: dict[str, list[Row]]) -> list[str]:
    """The run as overrides, as a user would type them; the given ones come last and win."""
    if sum(map(len, parts.values())) != len(rows):
        raise ValueError(f"{given.split}: leaves out cases of {given.data}; Hasten trains on all that are not held out")
    prepare = prepare_config(given.kind, given.spacing or (SPLEEN_SPACING if given.kind == "ct" else None))
    wanted: dict[str, Any] = {
        "data.source": str(given.data.resolve()),
        "data.split.by": "list",
        "data.split.validation": [row["id"] for row in parts["validation"]],
        "network.name": "unet",
        "network.channels": CHANNELS,
        "network.strides": STRIDES,
        "network.num_res_units": 2,
        "network.norm": "instance",
        "network.act": "prelu",
        "train.seed": given.seed,
        "train.device": given.device,
        "train.target": given.target,
        "train.max_seconds": given.max_seconds,
        "prepare.num_threads": given.workers,
        "prepare.spacing": prepare.spacing,
        "prepare.intensity": prepare.intensity,
        "prepare.window": prepare.window,
        "prepare.crop_foreground": prepare.crop_foreground,
        "sample.patch": given.patch,
        "infer.patch": given.roi,
        "train.learning_rate": given.lr,
        "train.precision": {"on": "bf16", "off": "fp32", None: None}[given.amp],
    }
    found = [f"{name}={json.dumps(value)}" for name, value in wanted.items() if value is not None]
    return [*found, *given.overrides]


def train_and_record(given: argparse.Namespace, record: Record, run: Path) -> None:
    import torch

    from hasten.config.load import load_run
    from hasten.engine.run import train
    from hasten.observe.progress import Progress

    rows, _ = list_cases(given.data)
    parts = read_split(rows, given.split)
    record.sizes = {part: len(cases) for part, cases in parts.items()}
    torch.set_num_threads(given.threads)
    config = load_run(None, settings(given, rows, parts))
    record.seconds["import"] = since_start()
    summary = train(config, run, progress=Progress())
    fill_record(record, run, summary)
    record.write()
    if given.weights is not None:
        best = torch.load(run / "checkpoints" / "best.pt", map_location="cpu", weights_only=True)
        torch.save(best["weights"], given.weights)


def fill_record(record: Record, run: Path, summary: dict[str, Any]) -> None:
    """Write what a run directory says into the record of an arm."""
    from hasten.config.load import load_run
    from hasten.observe.rundir import METRICS_JSONL, RUN_YAML, read_jsonl

    train: dict[str, Any] = {}
    for line in read_jsonl(run / METRICS_JSONL):
        if line["kind"] == "train":
            train = {name: line[name] for name in ("loss", "samples_per_s", "wait_share")}
        elif line["kind"] == "validation":
            point = {"seconds": round(line["time_s"], 3), "step": line["step"], "dice": line["dice"]}
            record.curve.append({**point, "per_class": list(line["dice_per_class"].values()), **train})
    record.engaged = summary["engaged"]
    seconds = dict(summary["seconds"])
    record.steps, record.stopped = summary["steps"], STOPPED.get(summary["status"], summary["status"])
    # From process start to Hasten's first own line: imports, Hasten's included.
    record.seconds["import"] = max(record.seconds["import"], seconds.get("import", 0.0))
    record.seconds["cache"] = seconds.get("read_plan", 0.0) + seconds.get("prepare", 0.0)
    record.seconds["wait"] = seconds.get("wait_for_data", 0.0)
    record.seconds |= {name: seconds.get(name, 0.0) for name in ("train", "validate", "tune", "compile", "checkpoint")}
    config = load_run(run / RUN_YAML)
    batch = config.sample.batch_size or 1
    if record.steps:
        patches = record.sizes["train"] * record.given.samples
        each = (record.seconds["train"] + record.seconds["wait"]) / record.steps
        record.epochs = [round(each * patches / batch, 3)]
    record.given.settled = {
        "sample.patch": config.sample.patch,
        "sample.batch_size": batch,
        "train.steps": config.train.steps,
        "train.precision": config.train.precision,
        "engaged": {name: part["on"] for name, part in summary.get("engaged", {}).items()},
    }


if __name__ == "__main__":
    main()
