"""Transforms that run as MONAI runs them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from monai.transforms import Compose, RandGaussianNoised, RandLambdad

from hasten.augment.compile import compile_transforms
from tests.augment.test_compile import rows


def test_two_threads_may_make_batches_by_the_same_transforms() -> None:
    transforms = [RandLambdad("image", func=lambda image: image * 2, prob=0.5), RandGaussianNoised("image", prob=0.5)]
    program = compile_transforms(Compose(transforms)).bind(rows(2), batch_size=4)
    wanted = [program(step)["image"] for step in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda step: program(step)["image"], range(12)))
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))
