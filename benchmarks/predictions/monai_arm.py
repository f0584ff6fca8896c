"""MONAI: its transforms, its sliding window, Invertd of the scores with linear interpolation, argmax, SaveImaged.

A thread of its ThreadDataLoader reads and prepares the next case while the network works.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def end(job: dict[str, Any]) -> Callable[[], object]:
    import torch
    from monai.data import Dataset, ThreadDataLoader, decollate_batch
    from monai.inferers import SlidingWindowInferer

    from benchmarks.predictions.scene import network_of

    network, how = network_of(job)
    inferer = SlidingWindowInferer(how.window, sw_batch_size=job["batch_size"], overlap=how.overlap, mode="gaussian")
    before = _before(job["spacing"], crop=True)
    after = _after(before, job["out"])

    def run() -> None:
        with torch.inference_mode():
            cases = Dataset([{"image": str(image)} for image in job["images"]], before)
            for batch in ThreadDataLoader(cases, batch_size=1, num_workers=0, buffer_size=1):
                batch["pred"] = inferer(batch["image"].to(job["device"]), network).cpu()
                for row in decollate_batch(batch):
                    after(row)

    return run


def _before(spacing: list[float], *, crop: bool) -> Any:
    from monai.transforms import (
        Compose,
        CropForegroundd,
        EnsureChannelFirstd,
        LoadImaged,
        Orientationd,
        ScaleIntensityRanged,
        Spacingd,
    )

    from benchmarks.predictions.scene import WINDOW

    low, high = WINDOW
    return Compose([
        LoadImaged("image"),
        EnsureChannelFirstd("image"),
        ScaleIntensityRanged("image", low, high, 0.0, 1.0, clip=True),
        *([CropForegroundd("image", source_key="image")] if crop else []),
        Orientationd("image", axcodes="RAS", labels=None),
        Spacingd("image", pixdim=spacing[::-1], mode="bilinear", dtype=np.float32),
    ])  # fmt: skip


def _after(before: Any, out: str) -> Any:
    from monai.transforms import AsDiscreted, Compose, Invertd, SaveImaged

    return Compose([
        Invertd("pred", transform=before, orig_keys="image", nearest_interp=False, to_tensor=True),
        AsDiscreted("pred", argmax=True),
        SaveImaged("pred", output_dir=Path(out), output_postfix="", separate_folder=False, output_dtype=np.uint8,
                   resample=False, print_log=False),
    ])  # fmt: skip
