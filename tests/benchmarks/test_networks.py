"""The bare loop that a run's step is compared with takes the same step."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from benchmarks.networks import bare_loop, parts_of
from hasten.phantoms.organs import write_phantoms
from hasten.runtime.variant import variant_of


def test_the_bare_loop_takes_the_same_steps(tmp_path: Path) -> None:
    data = write_phantoms(tmp_path / "set", num_cases=4, shape=(32, 40, 40))
    small = ("network.channels=[4,8]", "network.strides=[[2,2,2]]", "train.precision=fp32", "train.channels_last=false")
    parts = parts_of(data, "unet", tmp_path, small)
    weights, variant = parts.step.update.weights, variant_of(parts.planned.config.train)
    began, network = copy.deepcopy(weights.state_dict()), copy.deepcopy(weights)
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, len(parts.planned.case_set.channels), 32, 32, 32, generator=generator)
    label = torch.randint(0, parts.planned.num_outputs, (2, 1, 32, 32, 32), generator=generator).to(torch.uint8)
    once = bare_loop(parts, network, variant, image, label)
    for index in range(3):
        once(index)
        parts.step(image, label, index)
    for name, value in weights.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)
    assert any(not torch.equal(value, began[name]) for name, value in weights.state_dict().items())
