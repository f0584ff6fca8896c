"""Inference settings of a run."""

from __future__ import annotations

import math

import torch

from hasten.config.settled import PlannedRun
from hasten.nets.build import divisor
from hasten.prediction.infer import WINDOW_BATCH, Inference
from hasten.runtime.variant import variant_of


def inference_of(
    config: PlannedRun, *, spatial_dims: int, device: torch.device, classes: int, overlapping: bool = False
) -> Inference:
    """Inference settings of a run. classes: number of outputs. overlapping: whether the outputs are regions."""
    infer, variant, fused = config.infer, variant_of(config.train), config.train.fused_kernels
    return Inference(
        patch=infer.patch,
        divisor=divisor(config.network),
        whole_up_to=math.prod(infer.patch),
        overlap=infer.overlap,
        batch_size=infer.batch_size or WINDOW_BATCH,
        flip_axes=infer.flip_axes,
        precision=variant.precision,
        channels_last=variant.channels_last,
        spatial_dims=spatial_dims,
        device=device,
        # Of a run on a CPU, whether they are faster on a GPU was not measured; in channels-last torch's norms are slow.
        fused_kernels=device.type == "cuda" and variant.channels_last and (True if fused is None else fused),
        overlapping=overlapping,
        classes=classes,
    )
