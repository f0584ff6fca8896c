"""Sliding windows on the fake device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from hasten.config.schema import Triple
from hasten.prediction.infer import Inference, infer_labels
from hasten.runtime.precision import DTYPES
from tests.contracts.test_networks import config_of
from tests.prediction.window_scores import sliding_window
from tools.gpu_dry.fake_device import CUDA, NoHostCopies, expect, fake_cuda, moved
from tools.gpu_dry.table import Check
from tools.gpu_dry.training import CLASSES, PRECISIONS, made


def evaluation_checks() -> Iterator[Check]:
    for dims, precision, last in product((2, 3), PRECISIONS, (False, True)):
        title = f"{dims}-D {precision}{', channels last' if last else ''}"
        yield Check("windows", f"scores, {title}", partial(_scores, how_of(dims, precision, last)))
        for overlapping in (False, True):
            sums = DTYPES.get(precision, torch.float32)
            how = how_of(dims, precision, last, sums=sums, overlapping=overlapping, flip_axes=(1, 2))
            yield Check("windows", f"{'masks' if overlapping else 'labels'}, {title}", partial(_labels, how))


def how_of(dims: int, precision: str, last: bool, **options: Any) -> Inference:
    patch: Triple = (1 if dims == 2 else 16, 16, 16)
    divisor: Triple = (1 if dims == 2 else 4, 4, 4)
    return Inference(
        window=patch, divisor=divisor, whole_up_to=patch[0] * patch[1] * patch[2], overlap=0.5, batch_size=4,
        precision=precision, channels_last=last, spatial_dims=dims, device=CUDA, **options,
    )  # fmt: skip


def _scores(how: Inference) -> None:
    host = made(config_of("unet", how.spatial_dims), how.spatial_dims, how.channels_last).eval()
    with fake_cuda():
        volume = torch.empty(1, how.window[0], 40, 30, device=CUDA)
        network = moved(host)
        with NoHostCopies():
            result = sliding_window(network, volume, how)
    expect(
        "scores",
        (result.dtype, result.device, tuple(result.shape)),
        (torch.float32, CUDA, (CLASSES, *volume.shape[1:])),
    )


def _labels(how: Inference) -> None:
    """A volume that goes by windows, and two that go in one piece."""
    host = made(config_of("unet", how.spatial_dims), how.spatial_dims, how.channels_last).eval()
    with fake_cuda():
        depth = how.window[0]
        volumes = [torch.empty(1, depth, side, 16, device=CUDA) for side in (40, 16, 12)]
        network = moved(host)
        with NoHostCopies():
            results = dict(infer_labels(network, volumes, how))
    for number, volume in enumerate(volumes):
        shape = (CLASSES, *volume.shape[1:]) if how.overlapping else tuple(volume.shape[1:])
        dtype = torch.bool if how.overlapping else torch.uint8
        labels = results[number]
        expect("labels", (labels.dtype, labels.device, tuple(labels.shape)), (dtype, CUDA, shape))
