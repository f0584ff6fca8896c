"""Two processes that share their statistics are one with the whole batch."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from hasten.nets.surgery.operate import operate
from hasten.nets.surgery.sync_norm import sync_batch_norm
from tests.processes import Program

SCRIPT = """
import os, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from hasten.nets.surgery.operate import operate
from hasten.nets.surgery.sync_norm import sync_batch_norm

rank, folder, order = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
given = torch.load(f"{folder}/given.pt", weights_only=False)
network, image, target = given["network"], given["image"], given["target"]
# Shares of different sizes, so that a mean of means would be wrong.
first, last = (0, 1) if rank == 0 else (1, 4)
if order == "before":
    network = sync_batch_norm(network)
if order != "never":
    operate(network, image)
if order != "before":
    network = sync_batch_norm(network)
wrapped = DistributedDataParallel(network)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for step in range(3):
    # DistributedDataParallel takes the mean of the two gradients.
    loss = (wrapped(image[first:last]) - target[first:last]).square().sum() * 2 / target.numel()
    optimizer.zero_grad()
    loss.backward()
    grads = {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}
    optimizer.step()
network.eval()
torch.save({"state": network.state_dict(), "grads": grads, "out": network(image)}, f"{folder}/found{rank}.pt")
distributed.barrier()
# All is saved. Taking gloo's threads down, torch aborts now and then ("terminate called without an active exception").
os._exit(0)
"""


def network_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.PReLU(),
        nn.Conv2d(4, 4, 3),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 1, 1),
        nn.BatchNorm2d(1, affine=False, track_running_stats=False),
    )


@pytest.mark.parametrize("order", [pytest.param("before", marks=pytest.mark.slow), "after", "never"])
def test_statistics_and_gradients_are_those_of_the_whole_batch(tmp_path: Path, order: str) -> None:
    network = network_of().double()
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(4, 1, 9, 8, generator=generator, dtype=torch.float64)
    target = torch.randn(4, 1, 5, 4, generator=generator, dtype=torch.float64)
    torch.save({"network": network, "image": image, "target": target}, tmp_path / "given.pt")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [Program("-c", SCRIPT, str(rank), str(tmp_path), order, env=environment) for rank in range(2)]
    try:
        results = [rank.communicate(timeout=600)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], results
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        loss = (network(image) - target).square().sum() / target.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    wanted = network(image)
    for rank in range(2):
        result = torch.load(tmp_path / f"found{rank}.pt", weights_only=True)
        assert torch.allclose(result["out"], wanted, atol=1e-7)
        for name, value in network.named_parameters():
            if name in result["grads"]:
                assert value.grad is not None
                assert torch.allclose(result["grads"][name], value.grad, atol=1e-8), name
        for name, value in network.state_dict().items():
            # An operated network's running means are without the bias that it no longer adds.
            if "running_mean" not in name or order == "never":
                shown = not name.endswith("bias") or order == "never" or int(name.split(".")[0]) not in (0, 3, 6)
                assert not shown or torch.allclose(result["state"][name], value, atol=1e-7), name


def test_alone_it_is_a_plain_batch_norm_with_the_same_names() -> None:
    plain = network_of()
    other = copy.deepcopy(plain)
    image = torch.randn(2, 1, 9, 8)
    operate(other, image, biases=False)
    other = sync_batch_norm(other)
    assert list(other.state_dict()) == list(plain.state_dict())
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in other.modules()) == 3
    for training in (True, False):
        assert torch.allclose(other.train(training)(image), plain.train(training)(image), atol=1e-5)
    assert isinstance(sync_batch_norm(nn.BatchNorm2d(3)), nn.SyncBatchNorm)
    twin = copy.deepcopy(other)
    assert [type(module) for module in twin.modules()] == [type(module) for module in other.modules()]
