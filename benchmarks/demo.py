"""Train twice on made-up abdominal CT, the regular way and with Hasten, and show where the time went. Under 5 minutes.

Both runs have the same network, split, windowing, patch size and target Dice. The regular one is MONAI's Dataset and
DataLoader with worker processes, Adam and Dice loss (the lowest rung of the ladder), which reads and prepares
every case again in each epoch; it is stopped when its share of the five minutes is over, and then counts as slower than
that.
Seconds count from the start of each process: imports and, for Hasten, filling its cache are in them.
Writes demo/ (its own folder, emptied first) with the data and Hasten's run directory, and its report.html beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import ROOT
from benchmarks.ladder.rungs import rungs_named
from benchmarks.ladder.show import Ladder, terminal_table, verdict
from benchmarks.ladder.task import PeerSettings, Task, task_of, write_task
from benchmarks.tasks import NETWORK, prepare_config
from hasten.observe.cores import usable_cores

TARGET = 0.8
TRAIN_CASES, VALIDATION_CASES = 12, 4
PHANTOM = {"shape": (48, 128, 128), "spacing": (5.0, 2.5, 2.5)}
SPACING, PATCH = (5.0, 3.0, 3.0), (32, 64, 64)
CASES, CROPS = 2, 2
"""Of a step of the regular arm."""
HASTEN = ("sample.batch_size=4", "train.steps=150", "train.validate_every=10", "infer.overlap=0.25")
"""As many patches a step as the regular arm's, and the same windows in validation."""
BUDGET = 280.0
"""Seconds of the whole demonstration."""
HASTEN_CAP, REGULAR_CAP = 110.0, 150.0
GRACE = 15.0
"""Seconds that a run may take past its cap for its last validation, before it is ended from outside."""


def main(argv: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args(argv)
    began = time.monotonic()
    folder = ROOT / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    made = make_task(folder)
    task = write_task(folder / "task.json", made)
    say(f"{TRAIN_CASES} CT phantoms to train on, {VALIDATION_CASES} to validate; target mean Dice {TARGET}")
    say("\n1. Hasten")
    hasten = run_arm("hasten", task, folder / "hasten.json", HASTEN_CAP, "--run", str(folder / "hasten"))
    left = BUDGET - 2 * GRACE - (time.monotonic() - began)
    say(f"\n2. the regular way (Dataset, DataLoader with {usable_cores()} workers, Adam)")
    regular = run_arm("monai", task, folder / "regular.json", min(REGULAR_CAP, left), "--rung", "regular")
    runs = {"regular": [regular], "hasten": [hasten]}
    ladder = Ladder(task=made, rungs=rungs_named(list(runs)), results=runs, level=TARGET)
    Console().print(terminal_table(ladder))
    say(verdict(ladder))
    report(folder)
    say(f"\nreport: {ROOT / 'report.html'}   ({time.monotonic() - began:.0f} s in all)")


def make_task(folder: Path) -> Task:
    """The phantoms, written into `folder`, as what both runs are to do."""
    from benchmarks.data import phantoms
    from hasten.config.load import from_dict, load_run, to_dict

    data = phantoms(folder / "phantoms", TRAIN_CASES + VALIDATION_CASES, PHANTOM)
    held = [f"phantom_{index:03d}" for index in range(TRAIN_CASES, TRAIN_CASES + VALIDATION_CASES)]
    config = load_run(None, [f"data.source={data}", "data.split.by=list", f"data.split.validation={held}",
                             f"sample.patch={list(PATCH)}", f"train.target={TARGET}", *HASTEN])  # fmt: skip
    prepare = prepare_config("ct", SPACING)
    tree = to_dict(config) | {"network": dataclasses.asdict(NETWORK), "prepare": dataclasses.asdict(prepare)}
    return task_of(from_dict(tree, where="demo"), PeerSettings(cases=CASES, crops=CROPS), name="phantoms")


def run_arm(arm: str, task: Path, out: Path, cap: float, *flags: str) -> dict[str, Any]:
    """Run one arm, which shows its own progress, and give its result; at the latest after `cap` + GRACE seconds."""
    module = f"benchmarks.ladder.arms.{arm}"
    command = [sys.executable, "-m", module, "--task", str(task), "--out", str(out), "--max-seconds", f"{cap:.0f}",
               *flags]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=cap + GRACE)
    except subprocess.TimeoutExpired:
        if not out.is_file():  # nothing was validated; the other arm may still be worth a report
            raise SystemExit(f"{module} validated nothing in {cap:.0f} s: this machine is too slow or busy") from None
    else:
        if done.returncode != 0:
            raise SystemExit(f"{module} failed (exit {done.returncode}); its messages are above")
    result = json.loads(out.read_text())
    return result if result["stopped"] else {**result, "stopped": "max_seconds"}


def report(folder: Path) -> None:
    from hasten.report.page import write_report

    shutil.copyfile(write_report([folder / "hasten"], folder / "report.html"), ROOT / "report.html")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
