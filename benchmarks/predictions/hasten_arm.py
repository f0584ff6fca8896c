"""`hasten predict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def end(job: dict[str, Any]) -> Callable[[], object]:
    from benchmarks.predictions.scene import members_of
    from hasten.prediction.model import load_members
    from hasten.prediction.predict import find_cases, predict_cases

    members, images = members_of(job), [Path(image) for image in job["images"]]
    model, content = load_members(members, device=job["device"]), members[0].content
    out = Path(job["out"])

    def run() -> None:
        cases = find_cases(images, content["channels"], content["spatial_dims"])
        predict_cases(members, cases, out, overwrite=True, model=model)

    return run
