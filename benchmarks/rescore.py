"""Dice in the voxels of the files, for weights of any arm.

Prepared voxels differ a little between the arms on CT: Hasten crops before it resamples, MONAI's chain after. Here the
best weights of each arm go through the same `hasten predict` (a window of the training patch, a quarter overlap, fp32)
and are scored against the label files as they are. The networks of the arms are one and the same, but for the order
of their axes: the peers' volumes are (x, y, z), Hasten's (z, y, x), so their kernels are turned.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def rescored(data: Path, flags: Sequence[str], weights: Path, *, depth_first: bool) -> float:
    """Mean foreground Dice over the default split's validation cases. `flags` are those that the arm was run with."""
    import nibabel as nib
    import torch

    from benchmarks.ours import train as ours
    from benchmarks.peers.common import case_dice, list_cases, mean_dice, read_split
    from hasten.config.load import load_run, to_dict
    from hasten.engine.checkpoint import write_checkpoint
    from hasten.engine.predict import predict

    given = ours.arguments(["--data", str(data), "--out", "unused", *flags])
    rows, num_classes = list_cases(data)
    parts = read_split(rows, None)
    fixed = ["infer.overlap=0.25", "train.precision=fp32", "train.channels_last=false"]
    config = load_run(None, [*ours.settings(given, rows, parts), *fixed])
    tree = to_dict(config)
    tree["infer"]["patch"] = tree["infer"]["patch"] or tree["sample"]["patch"]
    state = torch.load(weights, map_location="cpu", weights_only=True)
    content: dict[str, Any] = {
        "weights": state if depth_first else {name: turned(value) for name, value in state.items()},
        "config": tree,
        "labels": json.loads((data / "dataset.json").read_text())["labels"],
        "channels": ["CT"],
        "spatial_dims": 3,
        "step": 0,
        "dice": 0.0,
    }
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "best.pt"
        write_checkpoint(model, content)
        out = Path(scratch) / "labels"
        predict(model, [Path(row["image"]) for row in parts["validation"]], out)
        scores = []
        for row in parts["validation"]:
            files = (out / f"{row['id']}.nii.gz", row["label"])
            predicted, label = (torch.from_numpy(nib.load(name).get_fdata()) for name in files)
            scores.append(case_dice(predicted, label, num_classes))
    return mean_dice(scores)[0]


def turned(value: Tensor) -> Tensor:
    """A convolution's kernel (O, I, x, y, z) as (O, I, z, y, x); anything else as it is."""
    return value.permute(0, 1, 4, 3, 2).contiguous() if value.ndim == 5 else value
