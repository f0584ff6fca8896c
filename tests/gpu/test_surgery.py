"""Surgery on the card: torch's own operations by default, one compiled kernel where it is asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hasten.nets.surgery.fallback import keep_fp32
from hasten.nets.surgery.normact import group_norm_act
from hasten.nets.surgery.normact_compiled import compiled_norm_act, written_out
from hasten.nets.surgery.operate import operate
from tests.nets.examples import NETWORKS, image_of, laid_out, network_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def close(found: torch.Tensor, wanted: torch.Tensor, share: float) -> bool:
    return bool((found - wanted).abs().max() <= share * wanted.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_outputs_and_gradients_are_those_before(name: str, compiled: bool, last: bool) -> None:
    torch.backends.cudnn.allow_tf32 = False
    plain, image = laid_out(network_of(name, 3).cuda(), image_of(name, 3).cuda(), last=last)
    other = copy.deepcopy(plain)
    operate(other, image, compiled=compiled)
    results = []
    for network in (plain, other):
        found = network(image)
        found.square().mean().backward()
        grads = {key: value.grad for key, value in network.named_parameters() if value.grad is not None}
        results.append((found.detach(), grads))
    (wanted, theirs), (found, mine) = results
    assert close(found, wanted, 1e-3)
    largest = max(value.abs().max() for value in theirs.values())
    for key, value in mine.items():
        assert (value - theirs[key]).abs().max() < 2e-3 * largest, key


@pytest.mark.parametrize("operation", [written_out, compiled_norm_act])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [4, 16])
def test_the_kernel_is_the_hosts_and_keeps_the_format(
    operation: Callable[..., torch.Tensor], dtype: torch.dtype, groups: int
) -> None:
    host = torch.randn(2, 16, 12, 10, 14).contiguous(memory_format=torch.channels_last_3d)
    weight, bias, slope = torch.randn(16), torch.randn(16), torch.tensor([0.2])
    wanted = group_norm_act(host, groups, weight, bias, slope)
    image = host.to("cuda", dtype).requires_grad_()
    found = operation(image, groups, weight.cuda(), bias.cuda(), slope.cuda(), 1e-5)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    assert close(found.float().cpu(), wanted, 1e-4 if dtype == torch.float32 else 2e-2)
    found.sum().backward()
    assert image.grad is not None
    assert image.grad.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_waits_for_no_value_and_is_captured(compiled: bool) -> None:
    network, image = laid_out(network_of("unet", 3).cuda(), image_of("unet", 3).cuda(), last=True)
    operate(network, image, compiled=compiled)
    keep_fp32(network, ["model.0*"])

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = network(image).float().square().mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_sync_debug_mode("error")
    try:
        wanted = step().detach()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert close(found.detach(), wanted, 1e-3)


def test_a_norm_without_an_activation_keeps_channels_last() -> None:
    network = nn.Sequential(nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8)).cuda()
    image = torch.randn(1, 1, 8, 8, 8, device="cuda")
    operate(network, image)
    network, image = laid_out(network, image, last=True)
    assert network(image).is_contiguous(memory_format=torch.channels_last_3d)
