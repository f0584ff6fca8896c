"""Surgery on the card: torch's own operations by default, Triton kernels where they are switched on."""

from __future__ import annotations

import copy

import pytest
import torch

from hasten.nets.surgery import fused_norms
from hasten.nets.surgery.fallback import keep_fp32
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.nets.surgery.operate import operate
from tests.gpu.graphs import captured, no_sync
from tests.nets.examples import NETWORKS, image_of, laid_out, network_of


def close(result: torch.Tensor, wanted: torch.Tensor, share: float) -> bool:
    return bool((result - wanted).abs().max() <= share * wanted.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_outputs_and_gradients_are_those_before(name: str, fused: bool, last: bool) -> None:
    torch.backends.cudnn.allow_tf32 = False
    plain, image = laid_out(network_of(name, 3).cuda(), image_of(name, 3).cuda(), last=last)
    other = copy.deepcopy(plain)
    operate(other, image)
    fused_norms(other, fused)
    results = []
    for network in (plain, other):
        scores = network(image)
        scores.square().mean().backward()
        grads = {key: value.grad for key, value in network.named_parameters() if value.grad is not None}
        results.append((scores.detach(), grads))
    (wanted, theirs), (scores, mine) = results
    assert close(scores, wanted, 1e-3)
    largest = max(value.abs().max() for value in theirs.values())
    for key, value in mine.items():
        assert (value - theirs[key]).abs().max() < 2e-3 * largest, key


@pytest.mark.parametrize("name", ["unet", "dynunet", "segresnet"])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_forms_of_a_gpu_give_the_same_outputs_and_gradients(
    name: str, dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.nets.surgery.gpu_forms._LEAST_VOXELS", 1)
    # In float64: the norm of a map of two voxels makes much of a difference in rounding.
    plain, image = laid_out(network_of(name, dims).double().cuda(), image_of(name, dims).double().cuda(), last=True)
    other = copy.deepcopy(plain)
    wanted = plain(image)
    wanted.square().mean().backward()
    with gpu_forms(takes=lambda tensor: tensor.is_cuda):
        result = other(image)
    result.square().mean().backward()
    assert close(result, wanted, 1e-6)
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        if one.grad is not None:
            assert two.grad is not None
            # Biases before a norm have no gradient but rounding.
            torch.testing.assert_close(two.grad, one.grad, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_waits_for_no_value_and_is_captured(fused: bool) -> None:
    network, image = laid_out(network_of("unet", 3).cuda(), image_of("unet", 3).cuda(), last=True)
    operate(network, image)
    fused_norms(network, fused)
    keep_fp32(network, ["model.0*"])

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = network(image).float().square().mean()
        loss.backward()
        return loss

    def fresh() -> None:
        network.zero_grad(set_to_none=True)
        step()

    for _ in range(2):
        fresh()
    with no_sync():
        wanted = step().detach()
    network.zero_grad(set_to_none=True)
    graph, result = captured(step, fresh)
    graph.replay()
    assert close(result.detach(), wanted, 1e-3)
