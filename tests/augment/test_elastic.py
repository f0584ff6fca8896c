"""Displacements against scipy's splines and SimpleITK's transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.augment.elastic import Elastic
from hasten.augment.maps import MapOp
from hasten.config.schema import Triple
from hasten.sample.random import sample_key


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


@pytest.mark.parametrize(
    ("size", "points", "dims"),
    [((9, 12, 7), (7,), 3), ((20, 5, 16), (4, 5, 9), 3), ((1, 15, 22), (6, 8), 2)],
)
def test_it_is_scipys_spline(size: Triple, points: tuple[int, ...], dims: int) -> None:
    op = Elastic(prob=1, num_control_points=points, magnitude_range=(2.0, 5.0))
    drawn = op.draw(keys(3), size, dims)
    result = op.displacement(drawn, size, dims)
    assert result.shape == (3, 3, *size)
    assert result.dtype == torch.float32
    grid = drawn["offsets"].shape[2:]
    axes = [
        np.zeros(1) if count == 1 else (np.arange(side) + 0.625) * (count - 3) / (side + 0.25) + 1
        for side, count in zip(size, grid, strict=True)
    ]
    places = np.stack(np.meshgrid(*axes, indexing="ij"))
    for row in range(3):
        for axis in range(3):
            # scipy's weights along an axis of one point add up to 1 with its mirror images.
            values = drawn["offsets"][row, axis].double().numpy()
            wanted = map_coordinates(values, places, order=3, prefilter=False, mode="mirror")
            np.testing.assert_allclose(result[row, axis].numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_it_is_simpleitks_transform() -> None:
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.Image([10, 12, 14], sitk.sitkFloat32)
    image.SetSpacing([1.5, 1.0, 2.0])
    image.SetOrigin([-3.0, 5.0, 7.0])
    transform = sitk.BSplineTransformInitializer(image, [2, 5, 4], 3)
    parameters = np.random.default_rng(0).uniform(-2, 2, len(transform.GetParameters()))
    transform.SetParameters(parameters.tolist())
    width, height, depth = (each + 3 for each in transform.GetTransformDomainMeshSize())
    in_mm = torch.tensor(transform.GetParameters(), dtype=torch.float32).view(3, depth, height, width).flip(0)
    offsets = (in_mm / torch.tensor((2.0, 1.0, 1.5)).view(3, 1, 1, 1))[None]
    assert offsets.shape == (1, 3, 7, 8, 5)
    result = Elastic(prob=1).displacement({"offsets": offsets}, (14, 12, 10), 3)
    for d, h, w in ((0, 0, 0), (13, 11, 9), (3, 7, 2), (8, 0, 9)):
        moved = transform.TransformPoint(image.TransformIndexToPhysicalPoint((w, h, d)))
        wanted = np.array(image.TransformPhysicalPointToContinuousIndex(moved))[::-1] - (d, h, w)
        np.testing.assert_allclose(result[0, :, d, h, w].numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_equal_offsets_move_everything_alike() -> None:
    offsets = torch.tensor([1.0, -2.0, 3.0]).view(1, 3, 1, 1, 1).expand(1, 3, 5, 6, 7).contiguous()
    result = Elastic(prob=1).displacement({"offsets": offsets}, (9, 8, 11), 3)
    torch.testing.assert_close(result, offsets[..., :1, :1, :1].expand(result.shape))


def test_a_flat_image_moves_within_its_plane() -> None:
    drawn = Elastic(prob=1).draw(keys(2), (1, 20, 20), 2)
    assert drawn["offsets"].shape == (2, 3, 1, 7, 7)
    assert not drawn["offsets"][:, 0].any()
    assert drawn["offsets"][:, 1:].all()


def test_locked_borders_do_not_move() -> None:
    op = Elastic(prob=1, num_control_points=(9, 10, 11), magnitude_range=(5.0, 5.0), locked_borders=3)
    drawn = op.draw(keys(2), (30, 30, 30), 3)
    assert drawn["offsets"][:, :, 3:-3, 3:-3, 3:-3].all()
    assert int((drawn["offsets"] != 0).sum()) == 2 * 3 * 3 * 4 * 5
    moved = op.displacement(drawn, (30, 30, 30), 3)
    assert float(moved.abs().amax()) > 0.5
    for axis in (2, 3, 4):
        assert float(moved.index_select(axis, torch.tensor([0, 29])).abs().amax()) < 0.01


def test_nothing_folds_below_the_bound() -> None:
    op = Elastic(prob=1, num_control_points=(6,), magnitude_range=(4.0, 4.0))  # 10 voxels between control points
    place = torch.stack(torch.meshgrid(*[torch.arange(30.0)] * 3, indexing="ij"))
    moved = place + op.displacement(op.draw(keys(4), (30, 30, 30), 3), (30, 30, 30), 3)
    steps = torch.stack([moved.diff(dim=axis)[:, :, :29, :29, :29] for axis in (2, 3, 4)], dim=-1)
    assert float(torch.linalg.det(steps.movedim(1, -2)).amin()) > 0


def test_it_is_a_map_that_changes_nothing_but_by_its_displacement() -> None:
    op, size = Elastic(prob=1), (6, 7, 8)
    assert isinstance(op, MapOp)
    assert op.out_size(size) == size
    drawn = op.draw(keys(2), size, 3)
    result = op.map(drawn, size, 3)
    assert torch.equal(result.linear, torch.eye(3).expand(2, 3, 3))
    assert not result.shift.any()
    for row in range(2):
        own = op.draw(keys(2)[row : row + 1], size, 3)
        assert torch.equal(own["offsets"][0], drawn["offsets"][row])
        torch.testing.assert_close(op.displacement(own, size, 3)[0], op.displacement(drawn, size, 3)[row])


def test_nothing_is_read_on_the_host() -> None:
    op = Elastic(prob=1, locked_borders=1)
    with FakeTensorMode():
        for size, dims in (((6, 7, 8), 3), ((1, 7, 8), 2)):
            drawn = op.draw(torch.empty(2, 2, dtype=torch.int64), size, dims)
            assert tuple(op.displacement(drawn, size, dims).shape) == (2, 3, *size)
