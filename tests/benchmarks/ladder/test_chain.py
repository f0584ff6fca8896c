"""What MONAI's arms read, against what Hasten prepares and trains on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose

from benchmarks.ladder.chain import RegionMasks, deterministic, network_of, random_crop, rows_of
from benchmarks.ladder.task import Task
from hasten.config.load import from_dict
from hasten.config.schema import PrepareConfig, Triple
from hasten.config.settled import PlannedNetwork

WINDOWED = PrepareConfig(spacing=(0.0, 0.0, 0.0), intensity="window", window=(-50.0, 90.0), crop_foreground=True)


def as_zyx(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.transpose(0, *range(array.ndim - 1, 0, -1))


@pytest.mark.parametrize(
    "changes",
    [{}, {"channels": 3}, {"values": (2, 7)}, {"prepare": WINDOWED}],
    ids=["zscore", "channels", "values", "window"],
)
def test_prepared_voxels_are_hastens(changes: dict[str, Any], make_task: Callable[..., Task], tmp_path: Path) -> None:
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig

    task = make_task(**changes)
    source = from_dict(task.run, where="test").data.source
    arena = get_arena(load_case_set(source), task.prepare, CacheConfig(dir=str(tmp_path)))
    chain = Compose(deterministic(task))
    for case, row in zip(task.train, rows_of(task.train), strict=True):
        [number] = arena.index((case.id,))
        theirs = chain(row)
        image, label = as_zyx(theirs["image"]), as_zyx(theirs["label"])[0]
        np.testing.assert_allclose(arena.image(number).float().numpy(), image, atol=5e-3)  # stored as fp16
        np.testing.assert_array_equal(arena.label(number).numpy(), label)


def test_regions_become_masks(make_task: Callable[..., Task]) -> None:
    task = make_task(values=(2, 5), regions={"whole": (2, 5), "core": (5,)})
    prepared = Compose([*deterministic(task, pad=True, indices=True), RegionMasks(task)])(rows_of(task.train)[0])
    label = torch.as_tensor(prepared["label"])
    assert label.shape == (2, 30, 26, 20)
    assert label.sum((1, 2, 3)).tolist() == [2 * 6**3, 6**3]
    # Crops are drawn about every labelled voxel, and cut from the masks.
    assert len(prepared["label_fg"]) == 2 * 6**3
    assert all(crop["label"].shape == (2, 16, 16, 8) for crop in random_crop(task)(prepared))


def unet(strides: tuple[Triple, ...], *, num_res_units: int) -> PlannedNetwork:
    return PlannedNetwork(name="unet", channels=(4, 8, 8), strides=strides, num_res_units=num_res_units)


NETWORKS = [
    (3, (16, 8, 24), unet(((1, 2, 2), (2, 1, 2)), num_res_units=2)),
    (2, (1, 8, 24), unet(((1, 2, 1), (1, 2, 2)), num_res_units=0)),
]


@pytest.mark.parametrize(("dims", "patch", "config"), NETWORKS, ids=["3-D", "2-D"])
def test_one_network_for_both_orders_of_axes(
    dims: int, patch: tuple[int, int, int], config: PlannedNetwork, make_task: Callable[..., Task]
) -> None:
    """With its kernels turned, MONAI's network on (x, y, z) is Hasten's on (z, y, x)."""
    shape = (30, 26, 20) if dims == 3 else (30, 26)
    task = make_task(shape=shape, spatial_dims=dims, patch=patch, roi=patch, network=config)
    torch.manual_seed(0)
    theirs, own = network_of(task, xyz=True).eval(), network_of(task, xyz=False).eval()

    def turned(value: torch.Tensor) -> torch.Tensor:
        return value.permute(0, 1, *range(value.ndim - 1, 1, -1)) if value.ndim == dims + 2 else value

    own.load_state_dict({name: turned(value) for name, value in theirs.state_dict().items()})
    image = torch.randn(1, 1, *patch[3 - dims :][::-1])
    with torch.no_grad():
        torch.testing.assert_close(own(turned(image).contiguous()), turned(theirs(image)), atol=1e-4, rtol=1e-4)
