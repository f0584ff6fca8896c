"""Hasten: `hasten.training.run.train` from an empty cache.

Rung `hasten` is a run with the task's own settings, which decides for itself what they leave open. Rung `engine` has
the loss, the optimizer, the crops and the batch of MONAI's fast arm, and Hasten's loop. The prepared cases, the
measurements and the compiled kernels of earlier runs are out of its reach, so that all three are in the clock. Scores
are of the weights that a user would get: averaged ones where an average is kept.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.record import ArmArguments, Record, arm_parser, mean_use, to_arguments
from benchmarks.ladder.rungs import RUNGS
from hasten.observe.clock import process_start, process_start_seconds

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig

NAMES = tuple(rung.name for rung in RUNGS if rung.module == "hasten")
STOPPED = {"target_reached": "target", "time_up": "max_seconds", "finished": "schedule", "interrupted": "interrupted"}
"""Hasten's word for how a run ended to the peers'."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = arm_parser(str(__doc__).splitlines()[0])
    parser.add_argument("--rung", choices=NAMES, default="hasten")
    parser.add_argument("--run", type=Path, help="keep the run directory here; new or empty")
    flags = parser.parse_args(argv)
    given = to_arguments(flags)
    if given.max_epochs is not None and flags.rung == "hasten":
        parser.error("--max-epochs: Hasten's schedule is in steps; set train.steps of the task's run instead")
    record = Record(arm=flags.rung, given=given, notes=str(__doc__))
    with fresh_cache(), nullcontext(flags.run) if flags.run else tempfile.TemporaryDirectory() as run:
        config = engine_config(given) if flags.rung == "engine" else hasten_config(given)
        train_and_record(record, config, Path(run))


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Folders of its own for whatever is kept between runs. Begin it before torch is imported."""
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["HASTEN_CACHE"] = str(Path(fresh) / "cache")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(fresh) / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(Path(fresh) / "triton")
        yield


def hasten_config(given: ArmArguments) -> RunConfig:
    """The task's run with the arm's flags, the network that all arms train, and no cache of its own."""
    return _config(given, {})


def engine_config(given: ArmArguments) -> RunConfig:
    """The same with the crops, the batch, the loss and the optimizer of MONAI's fast arm."""
    from benchmarks.ladder.algorithms import hasten_terms

    terms, task = hasten_terms(given.task), given.task
    if given.max_epochs is not None:
        batch = task.peer.cases * task.peer.crops
        terms["train"]["steps"] = max(1, given.max_epochs * task.patches_per_epoch // batch)
    return _config(given, terms)


def _config(given: ArmArguments, terms: dict[str, dict[str, Any]]) -> RunConfig:
    from hasten.config.load import from_dict

    task = given.task
    flags: dict[str, dict[str, Any]] = {
        "network": dataclasses.asdict(task.network),
        "cache": {"dir": None},
        "prepare": {"num_threads": given.workers},
        "train": {"seed": given.seed, "device": given.device, "metric": task.metric, "target": given.target},
    }
    if not task.run["train"].get("budget"):  # which ends the run itself
        flags["train"]["budget"] = given.max_seconds
    tree = {name: dict(section) for name, section in task.run.items()}
    for changes in (terms, flags):
        for name, values in changes.items():
            tree[name] |= values
    return from_dict(tree, where=f"task {task.name}")


def train_and_record(record: Record, config: RunConfig, run: Path) -> None:
    from hasten.nets.cpu.library import build_ahead

    build_ahead()  # as `hasten train` does
    import torch

    from hasten.observe.progress import Progress
    from hasten.training.run import train

    torch.set_num_threads(record.given.threads)
    record.seconds["import"] = process_start_seconds()
    summary = train(config, run, progress=Progress(), started=process_start())
    fill_record(record, run, summary)
    record.write()


def fill_record(record: Record, run: Path, summary: dict[str, Any]) -> None:
    """Write what a run directory says into the record of an arm."""
    from hasten.config.load import load_run
    from hasten.observe.monitor.recording import MONITOR_JSONL
    from hasten.observe.rundir import METRICS_JSONL, RUN_YAML, read_jsonl

    task, config = record.given.task, load_run(run / RUN_YAML)
    batch = config.sample.batch_size or 1
    train: dict[str, Any] = {}
    for line in read_jsonl(run / METRICS_JSONL):
        if line["kind"] == "train":
            train = {name: line[name] for name in ("loss", "samples_per_s", "wait_share")}
        elif line["kind"] == "validation":
            point = {
                "seconds": round(line["time_s"], 3),
                "step": line["step"],
                "dice": line["dice"],
                "iou": line["iou"],
            }
            epoch = round(line["step"] * batch / task.patches_per_epoch, 3)
            record.curve.append({**point, "epoch": epoch, "per_class": list(line["dice_per_class"].values()), **train})
    record.engaged = summary["accelerators"]
    seconds = dict(summary["seconds"])
    record.steps, record.stopped = summary["steps"], STOPPED.get(summary["status"], summary["status"])
    # From process start to Hasten's first own line: imports, Hasten's included.
    record.seconds["import"] = max(record.seconds["import"], seconds.get("import", 0.0))
    record.seconds["cache"] = seconds.get("read_plan", 0.0) + seconds.get("prepare", 0.0)
    record.seconds["wait"] = seconds.get("wait_for_data", 0.0)
    record.seconds |= {name: seconds.get(name, 0.0) for name in ("train", "validate", "tune", "compile", "checkpoint")}
    if record.steps:
        each = (record.seconds["train"] + record.seconds["wait"]) / record.steps
        record.epochs = [round(each * task.patches_per_epoch / batch, 3)]
    samples = [line for line in read_jsonl(run / MONITOR_JSONL) if line.get("kind") == "sample"]
    record.utilisation = mean_use(samples)
    record.settled = {
        "sample.patch": config.sample.patch,
        "sample.batch_size": batch,
        "train.steps": config.train.steps,
        "train.precision": config.train.precision,
    }


if __name__ == "__main__":
    main()
