"""Recomputation and the search for a batch size on a card, whose allocator tells what is really held."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from monai.networks.nets import DynUNet, UNet
from torch import Tensor, nn

from hasten.nets.recompute import recompute
from hasten.runtime.batch_size import find_batch_size, find_batch_size_for

CUDA = torch.device("cuda")


def unet(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return UNet(3, 1, 2, (16, 32, 64), (2, 2), num_res_units=2, norm="batch", dropout=dropout).to(CUDA)


def image_of(batch: int = 2, side: int = 64) -> Tensor:
    return torch.randn(batch, 1, side, side, side, device=CUDA)


def squares(output: Tensor, label: Tensor) -> Tensor:
    return output.float().square().mean()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_and_statistics_are_those_without_it(dropout: float, dtype: torch.dtype | None) -> None:
    plain = unet(dropout)
    saving, image = copy.deepcopy(plain), image_of(side=32)
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        assert recompute(saving, image, 1).modules
        for step in range(3):
            for network in (plain, saving):
                torch.manual_seed(step)
                loss = network(image).float().square().mean()
                loss.backward()
    loose = {"rtol": 1e-3, "atol": 1e-5} if dtype is None else {"rtol": 5e-2, "atol": 1e-2}
    for (name, one), other in zip(saving.named_parameters(), plain.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, msg=lambda text, name=name: f"{name}: {text}", **loose)
    for (name, one), other in zip(saving.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}", rtol=1e-4, atol=1e-5)


def test_the_allocator_holds_less() -> None:
    network, image = unet(), image_of()
    squares(network(image), image).backward()  # what libraries allocate once
    kept = []
    for budget in (2**60, 1):
        report = recompute(network, image, budget)
        network.zero_grad(set_to_none=True)
        gc.collect()
        before = torch.cuda.memory_allocated()
        loss = squares(network(image), image)
        kept.append(torch.cuda.memory_allocated() - before)
        loss.backward()
        del loss
    assert kept[1] < kept[0]
    assert kept[1] <= report.predicted + 2 * image.nbytes


def test_a_recomputed_step_can_be_captured() -> None:
    network, image = unet(), image_of(side=32)
    assert recompute(network, image, 1).modules
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network.zero_grad(set_to_none=True)
            squares(network(image), image).backward()
    torch.cuda.current_stream().wait_stream(side)
    wanted = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad(set_to_none=True)
    before = {name: value.clone() for name, value in network.named_buffers() if name.endswith("num_batches_tracked")}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        squares(network(image), image).backward()
    graph.replay()
    torch.cuda.synchronize()
    results = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    for one, other in zip(results, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    for name, value in before.items():
        assert dict(network.named_buffers())[name] == value + 1


def test_a_compiled_network_learns() -> None:
    network, image = unet(), image_of(side=32)
    assert recompute(network, image, 1).modules
    squares(torch.compile(network, dynamic=False)(image), image).backward()
    assert all(value.grad.isfinite().all() for value in network.parameters() if value.grad is not None)


def test_the_largest_batch_is_found_by_running_out_of_memory() -> None:
    free = torch.cuda.mem_get_info(CUDA)[0]
    each = free // 10

    def step(count: int) -> None:
        torch.empty(count * each, dtype=torch.uint8, device=CUDA)

    result = find_batch_size(step, highest=64)
    assert 8 <= result <= 10
    assert torch.cuda.mem_get_info(CUDA)[0] > 0.9 * free


def test_a_network_is_given_its_batch_size() -> None:
    torch.manual_seed(0)
    network = DynUNet(3, 1, 2, [3] * 4, [1, 2, 2, 2], [2, 2, 2], filters=[16, 32, 64, 64]).to(CUDA)
    held = torch.empty(max(0, torch.cuda.mem_get_info(CUDA)[0] - 4 * 2**30), dtype=torch.uint8, device=CUDA)
    result = find_batch_size_for(network, squares, (1, 64, 64, 64), num_classes=2, device=CUDA)
    assert 2 <= result < 2**16
    recompute(network, image_of(), 1)
    assert find_batch_size_for(network, squares, (1, 64, 64, 64), num_classes=2, device=CUDA) > result
    del held
