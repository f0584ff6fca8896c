"""nnU-Net v2 as it is: its own fingerprint, plan, preprocessing, network, loss, augmentation, trainer and predictor.

All of them run inside the clock, on the task's cases and split; the plan is that of the default planner, `3d_fullres`
(`2d` for pictures), with the features and the batch of the task's `peer` where it names them. The length is fitted to
the seconds that are given. The polynomial schedule ends with them: an epoch's seconds are measured, and the number of
epochs follows. An epoch is nnU-Net's 250 iterations, with a fifth as many for its own validation, or fewer where the
seconds hold less than twenty such epochs. Seeds hold for the parent process only, as nnU-Net seeds its loader's
processes by itself.

Dice is on the files' own voxels, where the predictor puts its result back: during the training without mirroring, and
seldom enough to cost about a twentieth of the time; at the end with mirroring, unless that would take longer than a
quarter of the seconds given; training stops earlier where even without it would. The last point bears the second at
which the training ended, so its prediction is not charged. It also has, as `prepared`, the score of the same label maps
brought to the voxels that the other arms are scored on, which differ for data that they resample.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ladder.nnunet_raw import DATASET, as_case, read_classes, write_raw, write_split
from benchmarks.ladder.record import (
    ArmArguments,
    Record,
    Scores,
    arm_arguments,
    case_scores,
    class_masks,
    iou_of,
    mean_score,
)  # fmt: skip
from benchmarks.ladder.task import PeerSettings
from hasten.cases.read import read_image
from hasten.observe.clock import process_start_seconds
from hasten.prepare.case import prepare_case

_EPOCHS = 20
"""At least so many in the seconds that are given, so that the schedule has steps to descend by."""
_SHARE = 0.05
"""Of the time, for scores during the training."""
_LONGEST = 0.25
"""Of the seconds given, for the prediction at the end, which follows them."""
_FOLDERS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the arm. Raises ValueError without nnU-Net, and for cases that cannot be read."""
    given = arm_arguments("nnU-Net v2 on a ladder's task.", argv)
    if importlib.util.find_spec("nnunetv2") is None:
        raise ValueError("--peer nnunet: needs nnunetv2; pip install 'hasten[peers]'")
    record = Record(arm="nnunet", given=given, notes=__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="hasten-nnunet-") as scratch, redirect_stdout(sys.stderr):
        trainer = _prepared(given, record, Path(scratch))
        try:
            trainer.on_train_start()
            with record.watched():
                _train(trainer, given, record)
        finally:
            if trainer.dataloader_train is not None:
                trainer.on_train_end()
    record.write()


def _prepared(given: ArmArguments, record: Record, scratch: Path) -> Any:
    """nnU-Net's trainer after its planning and preprocessing, which it does in processes of its own."""
    on_cpu = _set_up(given, scratch)
    import torch
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprints,
        plan_experiments,
        preprocess,
    )
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(given.seed)
    record.seconds["import"] = process_start_seconds()
    preprocessed = scratch / "nnUNet_preprocessed"
    with _span(record, "cache"):
        write_raw(given.task, scratch / "nnUNet_raw")
        extract_fingerprints([1], num_processes=given.workers, verbose=False, show_progress_bar=False)
        identifier = plan_experiments([1])
        configuration = "2d" if given.task.spatial_dims == 2 else "3d_fullres"
        plans = json.loads((preprocessed / DATASET / f"{identifier}.json").read_text())
        if configuration not in plans["configurations"]:
            raise ValueError(
                f"{given.task.name}: nnU-Net plans no {configuration} for these cases, but "
                f"{', '.join(plans['configurations'])}; check their shapes"
            )
        preprocess([1], identifier, [configuration], [given.workers], show_progress_bar=False)
        change_plan(plans["configurations"][configuration], given.task.peer)
        write_split(given.task, preprocessed)
        described = json.loads((preprocessed / DATASET / "dataset.json").read_text())
        torch.set_num_threads(given.threads)  # the planner changes it
        plans["continue_training"] = False
        device = torch.device("cpu" if on_cpu else "cuda")
        trainer = nnUNetTrainer(plans, configuration, 0, described, device)
        trainer.initialize()
    plan = trainer.configuration_manager
    record.settled |= {"configuration": configuration, "patch": list(plan.patch_size), "batch_size": plan.batch_size}
    record.settled["features"] = list(plan.network_arch_init_kwargs["features_per_stage"])
    record.settled["spacing"] = [round(float(at), 4) for at in plan.spacing]
    return trainer


def change_plan(configuration: dict[str, Any], peer: PeerSettings) -> None:
    """Set what `peer` names of a configuration of nnU-Net's plans. Raises ValueError for features of other stages."""
    if peer.nnunet_batch_size is not None:
        configuration["batch_size"] = peer.nnunet_batch_size
    if peer.nnunet_features is not None:
        network = configuration["architecture"]["arch_kwargs"]
        if len(peer.nnunet_features) != network["n_stages"]:
            raise ValueError(
                f"peer.nnunet_features: {list(peer.nnunet_features)} are of {len(peer.nnunet_features)} stages, but "
                f"nnU-Net plans {network['n_stages']} for these cases"
            )
        network["features_per_stage"] = list(peer.nnunet_features)


def _set_up(given: ArmArguments, scratch: Path) -> bool:
    """What nnU-Net reads from the environment; returns whether it computes on the CPU."""
    from hasten.runtime.device import pick_device

    device = pick_device(given.device)
    if device.index:
        raise ValueError(f"--device {device}: nnU-Net takes the first GPU; give cuda, and set CUDA_VISIBLE_DEVICES")
    names = {name: str(scratch / name) for name in _FOLDERS}
    for name in names.values():
        Path(name).mkdir()
    names["nnUNet_def_n_proc"] = str(given.workers)
    if device.type == "cpu" and "nnUNet_n_proc_DA" not in os.environ:
        # On the cores that also compute one process of augmentation keeps up; nnU-Net would start up to twelve.
        names["nnUNet_n_proc_DA"] = "1"
    os.environ.update(names)
    return device.type == "cpu"


def _train(trainer: Any, given: ArmArguments, record: Record) -> None:
    """nnU-Net's loop over epochs with its own hooks, until the seconds are over; then the final prediction."""
    scorer = _Scorer(trainer, given)
    last_scored = process_start_seconds()
    while record.stopped is None:
        started = time.perf_counter()
        trained = _epoch(trainer, record, scorer)
        record.epochs.append(round(time.perf_counter() - started, 3))
        _end_with_the_seconds(trainer, given, record, scorer)
        expected = scorer.expected(mirrored=False)
        if record.stopped is None and expected <= _SHARE * (process_start_seconds() - last_scored):
            _score(trainer, given, record, scorer, mirrored=False)
            last_scored = process_start_seconds()
    if record.stopped != "target":
        mirrored = scorer.expected(mirrored=True) <= _LONGEST * given.max_seconds
        # The step that was under way when the seconds were over counts as within them.
        at = min(trained, given.max_seconds) if record.steps > 3 else trained
        _score(trainer, given, record, scorer, mirrored=mirrored, at=at)
    record.settled |= {"epochs": trainer.current_epoch, "iterations_per_epoch": trainer.num_iterations_per_epoch}


def _epoch(trainer: Any, record: Record, scorer: _Scorer) -> float:
    """One epoch as nnU-Net's `run_training` has it; returns the second of the process at which its last step ended."""
    import torch

    trainer.on_epoch_start()
    trainer.on_train_epoch_start()
    outputs: list[dict[str, Any]] = []
    started = 0.0
    while len(outputs) < trainer.num_iterations_per_epoch:
        if outputs and process_start_seconds() >= scorer.deadline:
            break
        with _span(record, "wait"):
            batch = next(trainer.dataloader_train)
        with _span(record, "train"):
            outputs.append(trainer.train_step(batch))
        record.steps += 1
        if record.steps == 1:
            started = time.perf_counter()  # the first step allocates, and compiles on a GPU
        elif record.steps == 3:
            _fit_epoch(trainer, scorer, (time.perf_counter() - started) / 2)
    trained = process_start_seconds()
    trainer.on_train_epoch_end(outputs)
    with torch.no_grad(), _span(record, "validate"):
        trainer.on_validation_epoch_start()
        count = range(max(1, len(outputs) // 5))  # 50 for 250, as nnU-Net has it
        trainer.on_validation_epoch_end([trainer.validation_step(next(trainer.dataloader_val)) for _ in count])
    trainer.on_epoch_end()
    return trained


def _fit_epoch(trainer: Any, scorer: _Scorer, step_seconds: float) -> None:
    """Fewer iterations in an epoch where the seconds would hold too few epochs of 250."""
    # Forward is about a third of a step, of a batch of windows; the first scores correct this.
    scorer.window_seconds = step_seconds / trainer.batch_size / 2
    left = max(0.0, scorer.deadline - process_start_seconds())
    fitting = int(left / max(step_seconds, 1e-6) / _EPOCHS)
    trainer.num_iterations_per_epoch = max(3, min(trainer.num_iterations_per_epoch, fitting))


def _end_with_the_seconds(trainer: Any, given: ArmArguments, record: Record, scorer: _Scorer) -> None:
    """Let the schedule end with the seconds, by the mean of the epochs so far; sets `stopped` where they are over."""
    left = scorer.deadline - process_start_seconds()
    mean = sum(record.epochs) / len(record.epochs)
    more = round(left / mean / (1 + _SHARE)) if left > 0 else 0
    if given.max_epochs is not None:
        more = min(more, given.max_epochs - trainer.current_epoch)
    trainer.num_epochs = trainer.lr_scheduler.max_steps = trainer.current_epoch + max(more, 0)
    if more <= 0:
        record.stopped = "max_epochs" if trainer.current_epoch == given.max_epochs else "max_seconds"


def _score(
    trainer: Any, given: ArmArguments, record: Record, scorer: _Scorer, *, mirrored: bool, at: float | None = None
) -> None:
    with _span(record, "validate"):
        scores = scorer.scores(mirrored=mirrored)
    record.settled["mirroring"] = mirrored
    if at is None:
        record.validated(trainer.current_epoch, scores)
    else:
        mean = record.add(at, trainer.current_epoch, scores, prepared=scorer.prepared())
        record.write()
        print(
            f"nnunet {at:7.1f} s  step {record.steps:5d}  {given.task.metric} {mean:.4f}", file=sys.stderr, flush=True
        )


@dataclass
class _Scorer:
    """Dice of the validation cases by nnU-Net's predictor, on the voxels of their files."""

    trainer: Any
    given: ArmArguments
    window_seconds: float = math.inf
    """Of one window through the network, as measured so far."""
    labelled: dict[str, np.ndarray] = field(default_factory=dict)
    predicted: dict[str, np.ndarray] = field(default_factory=dict)
    """Class index on the files' own voxels (D, H, W), as of the last scores."""

    @property
    def deadline(self) -> float:
        """Second at which the training ends: that given, or earlier if the prediction would take too long after it."""
        seconds, expected = self.given.max_seconds, self.expected(mirrored=False)
        return seconds - max(0.0, expected - _LONGEST * seconds) if math.isfinite(expected) else seconds

    def expected(self, *, mirrored: bool) -> float:
        """Seconds that `scores` will take."""
        axes = self.trainer.inference_allowed_mirroring_axes or ()
        return self.windows * self.window_seconds * (2 ** len(axes) if mirrored else 1)

    def scores(self, *, mirrored: bool) -> Scores:
        import torch
        from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

        trainer, started = self.trainer, time.perf_counter()
        trainer.set_deep_supervision_enabled(False)
        trainer.network.eval()
        predictor = nnUNetPredictor(
            tile_step_size=0.5, use_gaussian=True, use_mirroring=mirrored, perform_everything_on_device=True,
            device=trainer.device, allow_tqdm=False,
        )  # fmt: skip
        predictor.manual_initialization(
            trainer.network, trainer.plans_manager, trainer.configuration_manager, None, trainer.dataset_json,
            type(trainer).__name__, trainer.inference_allowed_mirroring_axes,
        )  # fmt: skip
        rows = []
        with torch.no_grad():
            for case in self.given.task.validation:
                if case.id not in self.labelled:
                    self.labelled[case.id] = np.array(read_classes(case, self.given.task))  # a file may be mapped
                label = torch.from_numpy(self.labelled[case.id])
                rows.append(case_scores(self._masks(predictor, case.id), class_masks(label, self.given.task)))
        trainer.set_deep_supervision_enabled(trainer.enable_deep_supervision)
        passes = 2 ** len(trainer.inference_allowed_mirroring_axes or ()) if mirrored else 1
        self.window_seconds = (time.perf_counter() - started) / self.windows / passes
        return rows

    def prepared(self) -> float:
        """Mean of the task's metric for the last label maps, on the voxels that the other arms are scored on."""
        import torch

        task, rows = self.given.task, []
        for case in task.validation:
            image = read_image(as_case(case))
            both = (self.predicted[case.id], self.labelled[case.id])
            result, label = (prepare_case(image, each, id=case.id, spec=task.prepare).label for each in both)
            rows.append(case_scores(*(class_masks(torch.from_numpy(each), task) for each in (result, label))))
        mean, _ = mean_score(rows if task.metric == "dice" else [[iou_of(value) for value in row] for row in rows])
        return mean

    def _masks(self, predictor: Any, name: str) -> Any:
        """(K, D, H, W) bool, what is predicted for each class or region of a case."""
        import torch
        from nnunetv2.inference.export_prediction import convert_predicted_logits_to_segmentation_with_correct_shape

        trainer, task = self.trainer, self.given.task
        data, properties = self._prepared(name)
        logits = predictor.predict_sliding_window_return_logits(torch.from_numpy(data)).cpu()
        result = convert_predicted_logits_to_segmentation_with_correct_shape(
            logits, trainer.plans_manager, trainer.configuration_manager, trainer.label_manager, properties,
            return_probabilities=trainer.label_manager.has_regions, num_threads_torch=self.given.threads,
        )  # fmt: skip
        painted, overlapping = result if trainer.label_manager.has_regions else (result, None)
        self.predicted[name] = np.ascontiguousarray(painted, np.uint8)
        if overlapping is not None:
            return torch.from_numpy(overlapping) > 0.5
        return class_masks(torch.from_numpy(self.predicted[name]), task)

    def _prepared(self, name: str) -> tuple[np.ndarray, dict[str, Any]]:
        trainer = self.trainer
        dataset = trainer.dataset_class(trainer.preprocessed_dataset_folder, [name])
        data, _, _, properties = dataset.load_case(name)
        return np.array(data[:]), properties

    @cached_property
    def windows(self) -> int:
        """Windows of half their size apart, over all validation cases."""
        patch = self.trainer.configuration_manager.patch_size
        total = 0
        for case in self.given.task.validation:
            shape = self._prepared(case.id)[0].shape[1:]
            flat = [1] * (len(shape) - len(patch))
            sides = [max(0, n - p) / (p / 2) for n, p in zip(shape[len(flat) :], patch, strict=True)]
            total += math.prod([*shape[: len(flat)], *(math.ceil(side) + 1 for side in sides)])
        return total


@contextmanager
def _span(record: Record, phase: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        record.seconds[phase] += time.perf_counter() - started


if __name__ == "__main__":
    main()
