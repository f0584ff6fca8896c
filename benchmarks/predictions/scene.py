"""Phantoms with many organs, and a run fitted on small ones, so that every arm labels organs with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.config.schema import Spacing, Triple
from hasten.prediction.ensemble import Member, read_members, with_infer
from hasten.prediction.infer import Inference
from hasten.prediction.model import load_model
from hasten.runtime.precision import autocast

CLASSES = 14
WINDOW = (-200.0, 400.0)
"""HU that become 0 and 1."""
EXTENT = (450.0, 410.0, 410.0)
"""mm (D, H, W) of every phantom, whatever its voxels."""
PRECISION = "bf16"
"""Of the network, in every arm."""
_AIR, _BODY = -1000.0, 0.0


def organs(shape: Triple, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Image (D, H, W) int16 in HU and label uint8: a body with 13 ellipsoids, each of a brightness of its own."""
    y, x = _axes(shape)[1:]
    image = np.empty(shape, np.float32)
    image[:] = np.where((y[:, None] / 0.75) ** 2 + (x / 0.9) ** 2 < 1, _BODY, _AIR)
    label = np.zeros(shape, np.uint8)
    for value, distance in _distances(shape, seed):
        label[distance < 1] = value
        image[distance < 1] = 25.0 * value
    rng = np.random.default_rng(seed)
    for plane in image:
        plane += rng.standard_normal(plane.shape, np.float32) * np.float32(8)
    return image.astype(np.int16), label


def _axes(shape: Triple) -> list[np.ndarray]:
    return [((np.arange(side) + 0.5) * 2 / side - 1).astype(np.float32) for side in shape]


def _distances(shape: Triple, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Of each organ, its label and the squared distance (D, H, W) from its centre, 1 on its surface."""
    rng = np.random.default_rng((seed, 1))
    for value in range(1, CLASSES):
        column, row, place = value % 2, value // 2 % 2, value // 4
        centre = np.array((column - 0.5, (row - 0.5) * 0.6, (place / 3 * 2 - 1) * 0.55)) + rng.uniform(-0.05, 0.05, 3)
        radii = rng.uniform((0.2, 0.12, 0.1), (0.4, 0.22, 0.17))
        sides = zip(_axes(shape), centre, radii, strict=True)
        d, h, w = (np.square((axis - c) / r).astype(np.float32) for axis, c, r in sides)
        yield value, d[:, None, None] + (h[:, None] + w)


def spacing_of(shape: Triple) -> Spacing:
    depth, height, width = (extent / side for extent, side in zip(EXTENT, shape, strict=True))
    return depth, height, width


def write_organs(out: Path, count: int, shape: Triple) -> Path:
    """A Decathlon folder."""
    from hasten.phantoms.write import numbered, write_volumes

    names = {0: "background", **{value: f"organ{value}" for value in range(1, CLASSES)}}
    return write_volumes(
        out, numbered("organs", count), lambda index: organs(shape, index), title="Ellipsoids", channels=("CT",),
        labels=names, spacing=spacing_of(shape),
    )  # fmt: skip


def members_of(job: dict[str, Any]) -> list[Member]:
    """The job's run with the job's windows."""
    return with_infer(read_members(job["run"]), [f"infer.overlap={job['overlap']}"])


def network_of(job: dict[str, Any]) -> tuple[nn.Module, Inference]:
    """The job's network for the other arms, in the precision that Hasten applies it in, and how it is applied."""
    model = load_model(members_of(job)[0].content, where=str(job["run"]), device=job["device"])
    assert model.inference.precision == PRECISION
    return InPrecision(model.network, torch.device(job["device"])), model.inference


class InPrecision(nn.Module):
    """A network under autocast, with scores in float32, which are what windows are summed in."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network, self.device = network, device

    def forward(self, image: Tensor) -> Tensor:
        with autocast(self.device, PRECISION):
            scores: Tensor = self.network(image)
        return scores.float()


def fitted_run(work: Path, *, spacing: Spacing, window: Triple, channels: tuple[int, ...], steps: int) -> Path:
    """best.pt of a short training on small phantoms; one that is there is used again."""
    import hasten
    from hasten.config.load import load_run

    out = work / "run"
    if not (out / "checkpoints" / "best.pt").exists():
        data = write_organs(work / "fit", 4, (112, 128, 128))
        none = [f"sample.{name}_prob=0" for name in ("affine", "brightness", "contrast", "gamma", "noise")]
        config = load_run(None, [
            f"data.source={data}", f"prepare.spacing={list(spacing)}", "prepare.intensity=window",
            f"prepare.window={list(WINDOW)}", "prepare.crop_foreground=true", f"cache.dir={work / 'cache'}",
            "sample.patch=[48,48,48]", "sample.batch_size=2", *none, "sample.flip_prob=[0,0,0]",
            f"infer.patch={list(window)}", "network.name=unet", f"network.channels={list(channels)}",
            f"network.strides={[[2, 2, 2]] * (len(channels) - 1)}", "network.num_res_units=1", "train.ema=0",
            f"train.steps={steps}", f"train.validate_every={steps}", "train.learning_rate=0.01",
            f"train.precision={PRECISION}", "train.channels_last=false", "train.compile=false",
            "observe.trackers=[]",
        ])  # fmt: skip
        hasten.train(config, out)
    return out
