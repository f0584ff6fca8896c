"""Layers of few channels by Hasten's kernels, against float64 on the host."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.runtime.side_stream import SideStream
from tests.gpu.graphs import no_sync
from tests.nets.examples import laid_out

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Of the largest value, as results are rounded to the type."""
LAYERS = {
    "first": lambda: nn.Conv3d(1, 32, 3, padding=1),
    "first, strided": lambda: nn.Conv3d(1, 32, 3, stride=2, padding=1, bias=False),
    "both": lambda: nn.Conv3d(2, 2, 3, padding=1),
    "four to many": lambda: nn.Conv3d(4, 96, (1, 3, 3), padding=(0, 1, 1)),
    "last": lambda: nn.Conv3d(32, 3, 3, padding=1),
    "head": lambda: nn.Conv3d(40, 3, 1),
    "transposed": lambda: nn.ConvTranspose3d(64, 2, 3, stride=2, padding=1, output_padding=1),
    "2-D": lambda: nn.Conv2d(3, 24, 5, padding=2),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_values_and_gradients(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.nets.surgery.gpu_forms._LEAST_VOXELS", 1)
    layer: Any = LAYERS[name]()
    sides = (13, 17, 35) if "3d" in type(layer).__name__ else (61, 70)
    plain, image = laid_out(layer, torch.randn(2, layer.in_channels, *sides).to(dtype).float(), last=True)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(parameter.to(dtype))
    ours, there = copy.deepcopy(plain).cuda(), image.cuda().to(dtype).requires_grad_()
    exact, here = plain.double(), image.double().requires_grad_()
    wanted = exact(here)
    back = torch.randn_like(wanted).to(dtype).double()
    wanted.backward(back)
    with torch.autocast("cuda", dtype), gpu_forms():
        result = ours(there)
    assert "Few" in str(result.grad_fn)
    result.backward(back.cuda().to(dtype))
    pairs = [(result, wanted), (there.grad, here.grad)]
    pairs += [(one.grad, two.grad) for one, two in zip(ours.parameters(), exact.parameters(), strict=True)]
    for one, two in pairs:
        assert one is not None
        assert two is not None
        apart = (one.detach().double().cpu() - two.detach()).abs().max()
        assert apart <= TOLERANCE[dtype] * two.abs().max(), tuple(two.shape)


def test_they_can_be_captured_and_read_no_value() -> None:
    layer = nn.Conv3d(1, 32, 3, padding=1).cuda().to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    image = torch.randn(1, 1, 48, 48, 48, device="cuda")

    def step() -> torch.Tensor:
        layer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16), gpu_forms():
            loss = layer(image).float().square().mean()
        loss.backward()
        return loss

    side = SideStream(image.device)
    for _ in range(3):
        wanted = side.run(step)
    with no_sync():
        side.run(step)
    graph, loss = side.capture(step)
    graph.replay()
    assert torch.isclose(loss, wanted, rtol=1e-3)
