"""What `make gpu-dry` relies on: the budget of what kernels move, and autograd's backward pass in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.nets.examples import NETWORKS, image_of, network_of
from tools.gpu_dry.backward import backward
from tools.gpu_dry.own import Drifts
from tools.gpu_dry.traffic import Traffic, over_budget, read_budget, write_budget


def test_a_budget_is_passed_by_one() -> None:
    result = Traffic(launches=3, volumes=2, batches=3.0)
    assert over_budget(result, {"launches": 3, "volumes": 2, "batches": 3.0}) == []
    assert over_budget(result, {"launches": 2, "batches": 2.9}) == ["launches: 3 above 2", "batches: 3.0 above 2.9"]


def test_a_part_of_the_budget_is_written_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "budget.json"
    file.write_text('{"builds": {"a": {"launches": 9}}, "fused": {"gone": {"launches": 1}}}')
    monkeypatch.setattr("tools.gpu_dry.traffic._BUDGET", file)
    write_budget("fused", {"b": Traffic(3, 2, 1.5)})
    assert read_budget("fused") == {"b": {"launches": 3, "volumes": 2, "batches": 1.5}}
    assert read_budget("builds") == {"a": {"launches": 9}}


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
