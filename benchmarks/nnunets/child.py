"""nnU-Net in a process of its own: its planning, some timed iterations of a trainer, or a short training.

Nothing of Hasten is imported but by its trainer, so that starting nnU-Net's own costs what it costs.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

PLANS = "bench"


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """Fingerprint, plan and preprocess; then the plan `bench`, with `changes` to the configuration.

    Of these, `features` are those of the first stages, the last number being that of all further ones, and `shrink`
    divides the sides of the patch.
    """
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, plan_experiments, preprocess

    extract_fingerprints([job["id"]], num_processes=job["workers"])
    plan_experiments([job["id"]])
    folder = _preprocessed(job)
    content = json.loads((folder / "nnUNetPlans.json").read_text())
    configuration = content["configurations"][job["configuration"]]
    architecture = configuration["architecture"]["arch_kwargs"]
    changes = dict(job["changes"])
    stages = len(architecture["features_per_stage"])
    features = changes.pop("features", architecture["features_per_stage"])
    architecture["features_per_stage"] = (features + features[-1:] * stages)[:stages]
    steps = [math.prod(axis) for axis in zip(*architecture["strides"], strict=True)]
    shrink = changes.pop("shrink", 1)
    configuration["patch_size"] = [
        max(1, round(side / shrink / step)) * step
        for side, step in zip(configuration["patch_size"], steps, strict=True)
    ]
    configuration |= changes
    content["plans_name"] = PLANS
    (folder / f"{PLANS}.json").write_text(json.dumps(content))
    preprocess([job["id"]], PLANS, configurations=(job["configuration"],), num_processes=(job["workers"],))
    return {"batch_size": configuration["batch_size"], "patch_size": configuration["patch_size"]}


def turn(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the start of the process to the end of the first iteration, of an iteration, and of its wait."""
    trainer = _trainer(job)
    trainer.on_train_start()
    trainer.on_train_epoch_start()
    source = trainer.dataloader_train
    fixed = next(source) if job["fixed"] else None
    waits, whole, start = [], [], 0.0
    for number in range(job["warm_up"] + job["steps"]):
        begin = time.perf_counter()
        batch = next(source) if fixed is None else fixed
        _wait_for_device(job)
        ready = time.perf_counter()
        trainer.train_step(batch)
        _wait_for_device(job)
        end = time.perf_counter()
        if number == 0:
            start = time.time() - job["began"]
        if number >= job["warm_up"]:
            waits.append(ready - begin)
            whole.append(end - begin)
    _finish(trainer)
    # Sums: workers that fall behind make some iterations wait long and others not at all.
    return {
        "start_s": start, "iteration_s": statistics.mean(whole), "median_s": statistics.median(whole),
        "wait_s": statistics.mean(waits),
    }  # fmt: skip


def curve(job: dict[str, Any]) -> dict[str, Any]:
    """The loss of every iteration of a short training with its whole schedule, and the Dice of its validation."""
    import numpy as np
    import torch

    random.seed(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002 - nnU-Net draws from it
    torch.manual_seed(job["seed"])
    trainer = _trainer(job)
    trainer.num_epochs, trainer.num_iterations_per_epoch = job["epochs"], job["iterations"] // job["epochs"]
    trainer.num_val_iterations_per_epoch = 2
    losses: list[Any] = []
    step = trainer.train_step

    def recorded(batch: Any) -> Any:
        result = step(batch)
        losses.append(result["loss"])
        return result

    trainer.train_step = recorded
    trainer.run_training()
    trainer.perform_actual_validation()
    summary = json.loads((Path(trainer.output_folder) / "validation" / "summary.json").read_text())
    return {"losses": [float(each) for each in losses], "dice": summary["foreground_mean"]["Dice"]}


def _trainer(job: dict[str, Any]) -> Any:
    import torch

    if job["trainer"] == "nnUNetTrainerHasten":
        sys.path.insert(0, job["folder"])
        from nnUNetTrainerHasten import nnUNetTrainerHasten as kind  # type: ignore[import-not-found]
    else:
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as kind
    folder = _preprocessed(job)
    plans, dataset = (json.loads((folder / name).read_text()) for name in (f"{PLANS}.json", "dataset.json"))
    plans["continue_training"] = False
    torch.set_num_threads(job["threads"])
    return kind(plans, job["configuration"], 0, dataset, torch.device(job["device"]))


def _preprocessed(job: dict[str, Any]) -> Path:
    return Path(os.environ["nnUNet_preprocessed"]) / job["dataset"]  # noqa: SIM112 - nnU-Net's own name


def _wait_for_device(job: dict[str, Any]) -> None:
    if job["device"] != "cpu":
        import torch

        torch.cuda.synchronize()


def _finish(trainer: Any) -> None:
    for loader in (trainer.dataloader_train, trainer.dataloader_val):
        if hasattr(loader, "_finish"):
            loader._finish()


if __name__ == "__main__":
    made = {"plan": plan, "turn": turn, "curve": curve}[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps(made))
