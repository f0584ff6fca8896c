from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from hasten.augment.noise import GaussianNoise
from tests.augment.test_value_ops import keys


def test_noise_has_the_drawn_strength_and_no_pattern() -> None:
    op, shape = GaussianNoise(std=(0.2, 0.2)), (2, 8, 9, 10)
    noise = op.apply(torch.zeros(40, *shape), op.draw(keys(40), shape)) / 0.2
    assert stats.kstest(noise.double().numpy().ravel(), "norm").pvalue > 0.001
    flat = noise.double().flatten(2)
    assert abs(np.corrcoef(flat[:, 0].ravel(), flat[:, 1].ravel())[0, 1]) < 0.02
    for axis in (2, 3, 4):
        near, next_to = noise.narrow(axis, 0, 7).flatten(), noise.narrow(axis, 1, 7).flatten()
        assert abs(np.corrcoef(near, next_to)[0, 1]) < 0.02
    assert len({tuple(sample[:5].tolist()) for sample in flat[:, 0]}) == 40
