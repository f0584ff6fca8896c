"""Images stretched to a range, as MONAI stretches them."""

from __future__ import annotations

import pytest
import torch
from monai.transforms import ScaleIntensity

from hasten.augment.rescale import Rescale
from tests.augment.lowering import item


@pytest.mark.parametrize("channel_wise", [False, True])
@pytest.mark.parametrize("limits", [(0.0, 1.0), (-3.0, 2.0)])
@pytest.mark.parametrize("dims", [2, 3])
def test_it_is_monais(channel_wise: bool, limits: tuple[float, float], dims: int) -> None:
    image = torch.stack([item(dims, seed=seed)["image"] for seed in range(3)])
    found = Rescale(minv=limits[0], maxv=limits[1], channel_wise=channel_wise).apply(image, {})
    for row in range(3):
        wanted = torch.as_tensor(ScaleIntensity(*limits, channel_wise=channel_wise)(image[row]))
        assert torch.allclose(found[row], wanted, atol=1e-5)


def test_an_image_of_one_value_is_monais() -> None:
    image = torch.full((2, 1, 4, 4), 3.0)
    for minv in (0.0, 2.0):
        wanted = torch.as_tensor(ScaleIntensity(minv, 5.0)(image[0]))
        assert torch.equal(Rescale(minv=minv, maxv=5.0).apply(image, {})[0], wanted)
