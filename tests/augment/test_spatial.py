"""nnU-Net's rotation, scaling and mirroring with the numbers that were drawn, against batchgeneratorsv2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hasten.augment.affine import Spatial
from hasten.augment.grid import Mirror
from hasten.augment.read import as_cases, coordinates_of, read
from hasten.sample.random import sample_key

COUNT = 6


@pytest.mark.parametrize("kind", ["3d", "2d", "in_plane"])
def test_rotation_and_scaling_are_nnunets(kind: str) -> None:
    peers = pytest.importorskip("batchgeneratorsv2.transforms.spatial.spatial")
    pseudo = pytest.importorskip("batchgeneratorsv2.transforms.utils.pseudo2d")
    dims, shape = (2, (1, 17, 14)) if kind == "2d" else (3, (7, 13, 12))
    op = Spatial(rotate_prob=1.0, rotate=(-math.pi / 3, math.pi / 3), scale_prob=1.0, in_plane=kind == "in_plane")
    drawn = op.draw(sample_key(torch.tensor(0), torch.arange(COUNT)), shape, dims)
    image = torch.rand(COUNT, 2, *shape, generator=torch.Generator().manual_seed(0))
    label = torch.randint(0, 3, (COUNT, 1, *shape), generator=torch.Generator().manual_seed(1), dtype=torch.int16)
    place = coordinates_of(op.map(drawn, shape, dims), shape, shape)
    case, start = torch.arange(COUNT), torch.zeros(COUNT, 3, dtype=torch.int64)
    how: dict[str, Any] = {"padding_mode": "zeros", "spatial_dims": dims}
    result = read(as_cases(image), case, start, place, mode="bilinear", **how)
    classes = read(as_cases(label), case, start, place, mode="nearest", **how)
    shares = read(as_cases(label + 1), case, start, place, mode="majority", **how) - 1
    for row in range(COUNT):
        angles, factor = drawn["rotate"][row].tolist(), float(drawn["scale"][row, -1])
        by_mode = {}
        for mode, others in (("nearest", {}), ("bilinear", {"border_mode_seg": "constant", "padding_value_seg": -1})):
            peer = peers.SpatialTransform(
                shape if kind == "3d" else shape[1:], 0, False, p_rotation=1,
                rotation=lambda image, dim, angles=angles: angles[dim] if kind == "3d" else angles[0],
                p_scaling=1, scaling=factor, p_synchronize_scaling_across_axes=1, mode_seg=mode, **others,
            )  # fmt: skip
            volumes = {"image": image[row], "segmentation": label[row]}
            if kind == "2d":
                wanted = {key: each[:, None] for key, each in peer(**{k: v[:, 0] for k, v in volumes.items()}).items()}
            elif kind == "in_plane":
                wanted = pseudo.Convert2DTo3DTransform()(**peer(**pseudo.Convert3DTo2DTransform()(**volumes)))
            else:
                wanted = peer(**volumes)
            by_mode[mode] = wanted["segmentation"]
        torch.testing.assert_close(result[row], wanted["image"], rtol=1e-4, atol=1e-4)
        # A place halfway between two voxels may fall to either.
        assert float((classes[row] == by_mode["nearest"]).float().mean()) > 0.995
        assert float((shares[row] == by_mode["bilinear"]).float().mean()) > 0.997


@pytest.mark.parametrize("axes", [(0, 1, 2), (1,), (0, 2)])
def test_mirroring_is_nnunets(axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    peers = pytest.importorskip("batchgeneratorsv2.transforms.spatial.mirroring")
    shape = (4, 6, 5)
    op = Mirror(spatial_axis=axes)
    drawn = op.draw(sample_key(torch.tensor(0), torch.arange(COUNT)), shape, 3)
    image = torch.rand(COUNT, 2, *shape)
    place = coordinates_of(op.map(drawn, shape, 3), shape, shape)
    start = torch.zeros(COUNT, 3, dtype=torch.int64)
    result = read(
        as_cases(image), torch.arange(COUNT), start, place, mode="bilinear", padding_mode="zeros", spatial_dims=3
    )
    for row in range(COUNT):
        turned = [axis for axis in axes if drawn["sign"][row, axis] < 0]
        peer = peers.MirrorTransform(allowed_axes=axes)
        wanted = peer._apply_to_image(image[row].clone(), axes=turned)
        assert torch.equal(result[row], wanted)
        assert np.isfinite(wanted.numpy()).all()
