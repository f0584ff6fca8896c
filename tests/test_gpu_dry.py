"""What `make gpu-dry` relies on: counting in inductor's source, and autograd's backward pass in Python."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.nets.examples import NETWORKS, image_of, network_of
from tools.gpu_dry.backward import backward
from tools.gpu_dry.own import Drifts
from tools.gpu_dry.traffic import Traffic, traffic_of

SOURCE = """
def triton_one(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
def triton_two(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
def call(self, args):
    buf0 = empty_strided_cuda((2, 1, 512, 512), (262144, 262144, 512, 1), torch.float32)
    # Topologically Sorted Source Nodes: [buf9]
    triton_one.run(arg0_1, buf0, 524288, stream=stream0)
    buf1 = empty_strided_cuda((2, ), (1, ), torch.int64)
    triton_one.run(arg0_1, buf1, 2, stream=stream0)
    buf2 = buf0; del buf0  # reuse
    triton_two.run(buf2, buf1, 524288, stream=stream0)
    return (buf2, )
"""


def test_traffic_is_what_kernels_read_and_write_of_what_kernels_made() -> None:
    image, numbers = 2 * 512 * 512 * 4, 2 * 8
    moved = image + numbers + (2 * image + numbers)
    assert traffic_of(SOURCE) == Traffic(launches=3, volumes=2, batches=round(moved / image, 1))


def gradients(network: nn.Module, image: Tensor, run: object) -> list[Tensor]:
    network.zero_grad()
    run(network(image).square().mean())  # type: ignore[operator]
    return [weight.grad for weight in network.parameters() if weight.grad is not None]


@pytest.mark.parametrize("name", NETWORKS)
def test_backward_in_python_is_autograds(name: str) -> None:
    network, image = network_of(name, 3), image_of(name, 3)
    wanted, result = (gradients(network, image, run) for run in (Tensor.backward, backward))
    assert len(wanted) == len(result) > 0
    for one, other in zip(wanted, result, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_hand_written_backward_that_changes_the_type_is_an_error() -> None:
    value = torch.ones(3, requires_grad=True)
    with pytest.raises(AssertionError, match="float16"):
        backward(Drifts.apply(value * 1).sum())
