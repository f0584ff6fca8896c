"""`hasten predict`, and its way from scores to a file without the network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_LAYER = 48
"""Planes that sliding windows complete at once: half a window of 96."""


def end(job: dict[str, Any]) -> Callable[[], object]:
    from benchmarks.predictions.scene import members_of
    from hasten.prediction.inputs import find_cases
    from hasten.prediction.model import load_members
    from hasten.prediction.predict import predict_cases

    members, images = members_of(job), [Path(image) for image in job["images"]]
    model, content = load_members(members, device=job["device"]), members[0].content
    out = Path(job["out"])

    def run() -> None:
        cases = find_cases(images, content["channels"], content["spatial_dims"])
        predict_cases(members, cases, out, overwrite=True, model=model)

    return run


def export(job: dict[str, Any]) -> Callable[[], object]:
    return _export(job, _linear)


def nearest(job: dict[str, Any]) -> Callable[[], object]:
    """The label map of the prepared grid, its voxels repeated: what interpolated scores are compared with."""

    def label(scores: Any, geometry: Any) -> np.ndarray:
        import torch

        labels = scores.max(0)[1].to(torch.uint8)[None, None]
        return torch.nn.functional.interpolate(labels, geometry.crop_shape, mode="nearest-exact")[0, 0].numpy()

    return _export(job, label)


def _export(job: dict[str, Any], label: Callable[[Any, Any], np.ndarray]) -> Callable[[], object]:
    import torch

    from benchmarks.predictions.scene import CLASSES
    from hasten.cases.read import read_image
    from hasten.cases.types import Case
    from hasten.config.schema import PrepareConfig
    from hasten.prediction.label_files import write_label
    from hasten.prepare.case import prepare_case, restore_label

    case = Case(id="a", image=(Path(job["images"][0]),))
    volume = read_image(case)
    spec = PrepareConfig(spacing=tuple(job["spacing"]), intensity="zscore", crop_foreground=False)
    geometry = prepare_case(volume, None, id="a", spec=spec).geometry
    scores = torch.from_numpy(np.load(job["scores"]))
    assert tuple(scores.shape[1:]) == geometry.shape

    def run() -> None:
        result = restore_label(label(scores, geometry), geometry, range(CLASSES))
        write_label(Path(job["out"]) / f"{job['names'][0]}.nii.gz", result, volume, case)

    return run


def _linear(scores: Any, geometry: Any) -> np.ndarray:
    import torch

    from hasten.prediction.regrid import RegridSink, thick_axis

    axis = thick_axis(geometry.prepared_spacing, geometry.spacing)
    sink = RegridSink(geometry.shape, geometry.crop_shape, torch.device("cpu"), axis=0, nearest=axis)
    depth, height, width = geometry.shape
    for start in range(0, depth, _LAYER):
        stop = min(start + _LAYER, depth)
        sink.take(
            (slice(start, stop), slice(0, height), slice(0, width)), scores[:, start:stop], lambda: torch.ones(())
        )
    return sink.result().numpy()
