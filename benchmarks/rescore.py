"""Dice in the voxels of the files, for weights of any rung of the ladder.

Prepared voxels differ a little between the arms on CT: Hasten crops before it resamples, MONAI's chain after. Here the
best weights of each arm go through the same `hasten predict` (a window of the training patch, a quarter overlap, fp32)
and are scored against the label files as they are. The networks of the arms are one and the same, but for the order
of their axes: MONAI's volumes are (x, y, z), Hasten's (z, y, x), so their kernels are turned.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ladder.task import Task

if TYPE_CHECKING:
    from torch import Tensor


def rescored(task: Task, weights: Path, *, depth_first: bool) -> float:
    """Mean foreground Dice over the validation cases of a 3-D task. depth_first: the weights are Hasten's own."""
    import nibabel as nib
    import torch

    from benchmarks.ladder.record import case_scores, class_masks, mean_score
    from hasten.checkpoint.file import write_checkpoint
    from hasten.prediction.predict import predict

    state = torch.load(weights, map_location="cpu", weights_only=True)
    content: dict[str, Any] = {
        "weights": state if depth_first else {name: turned(value) for name, value in state.items()},
        "config": settings(task),
        "labels": {str(value): name for value, name in task.labels.items()},
        "channels": list(task.channels),
        "spatial_dims": 3,
        "step": 0,
        "dice": 0.0,
    }
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "best.pt"
        write_checkpoint(model, content)
        out = Path(scratch) / "labels"
        predict(model, [Path(case.image[0]) for case in task.validation], out)
        scores = []
        for case in task.validation:
            files = (str(out / f"{case.id}.nii.gz"), case.label)
            predicted, label = (torch.from_numpy(nib.load(name).get_fdata()) for name in files)
            scores.append(case_scores(*(class_masks(each, task, values=True) for each in (predicted, label))))
    return mean_score(scores)[0]


def settings(task: Task) -> dict[str, Any]:
    """A full configuration as a checkpoint holds it: the task's preparation and network, the same windows for all."""
    from hasten.config.load import from_dict, to_dict

    tree = {name: dict(section) for name, section in task.run.items()}
    tree["prepare"] = dataclasses.asdict(task.prepare)
    tree["network"] = dataclasses.asdict(task.network)
    tree["sample"]["patch"] = tree["infer"]["patch"] = task.patch
    tree["infer"]["overlap"] = 0.25
    tree["train"] |= {"precision": "fp32", "channels_last": False}
    return to_dict(from_dict(tree, where=f"task {task.name}"))


def turned(value: Tensor) -> Tensor:
    """A convolution's kernel (O, I, x, y, z) as (O, I, z, y, x); anything else as it is."""
    return value.permute(0, 1, 4, 3, 2).contiguous() if value.ndim == 5 else value
