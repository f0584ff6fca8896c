"""The step against nnU-Net's own, on a network as nnU-Net plans them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.nets.losses.deep_supervision import nearest
from hasten.runtime.variant import Variant, VariantTimes

pytest.importorskip("nnunetv2.training.loss.compound_losses")

from hasten.nnunet import step as module
from hasten.nnunet.loss import objective
from tests.nnunet.test_loss import default

CPU = torch.device("cpu")
SHAPE = (2, 1, 16, 16, 16)


def network() -> nn.Module:
    from dynamic_network_architectures.architectures.unet import PlainConvUNet

    torch.manual_seed(0)
    made: nn.Module = PlainConvUNet(
        1, 3, [4, 8, 8], nn.Conv3d, 3, [1, 2, 2], [2, 2, 2], 3, [2, 2], conv_bias=True, norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"affine": True}, nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True}, deep_supervision=True,
    )  # fmt: skip
    return made


def loss() -> Any:
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper

    return DeepSupervisionWrapper(default(False), [1.0, 0.0])


def setting(tmp_path: Path, **others: Any) -> module.StepSetting:
    fields: dict[str, Any] = {
        "shape": SHAPE, "strides": (4, 4, 4), "num_classes": 3, "spatial_dims": 3, "iterations": 10,
        "several_ranks": False, "idle": True, "memory": tmp_path,
    }  # fmt: skip
    return module.StepSetting(**fields | others)


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SHAPE, generator=generator), torch.randint(
        0, 3, (2, 1, *SHAPE[2:]), generator=generator, dtype=torch.uint8
    )


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), 1e-2, weight_decay=3e-5, momentum=0.99, nesterov=True)


@pytest.mark.parametrize("several_ranks", [False, True])
def test_it_updates_as_nnunets_does(tmp_path: Path, several_ranks: bool) -> None:
    mine, theirs = network(), network()
    names = list(mine.state_dict())
    step, engaged = module.make_step(
        mine, objective(loss()), module.fused_optimizer(sgd(mine)), setting(tmp_path, several_ranks=several_ranks), CPU
    )
    optimizer, whole = sgd(theirs), loss()
    for number in range(3):
        image, target = batch(number)
        value = step(image, target, 0)
        optimizer.zero_grad(set_to_none=True)
        outputs = theirs(image)
        expected = whole(outputs, [nearest(target, each.shape[2:]) for each in outputs])
        expected.backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 12)
        optimizer.step()
        torch.testing.assert_close(value, expected.detach(), rtol=1e-4, atol=1e-4)
    assert engaged["fused norms"].on
    assert list(mine.state_dict()) == names
    image, target = batch(9)
    with torch.no_grad():
        _, scores = module.evaluate(step, image, target)
        torch.testing.assert_close(scores, theirs(image)[0], rtol=1e-3, atol=1e-3)
    assert all(weight.requires_grad for weight in mine.parameters()) == several_ranks


def test_what_is_faster_here_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Variant(precision="bf16", channels_last=True)
    asked: list[list[Variant]] = []

    def measured(net: nn.Module, probe: Any, allowed: list[Variant], memory: Path, seconds: float) -> VariantTimes:
        asked.append(allowed)
        assert seconds > 10
        assert probe.shape == (min(2, torch.get_num_threads()), *SHAPE[1:])
        assert memory == tmp_path
        return VariantTimes({str(best): 0.1}, best)

    monkeypatch.setattr(module, "fastest_variant", measured)
    net = network()
    optimizer = module.fused_optimizer(sgd(net))
    step, _ = module.make_step(net, objective(loss()), optimizer, setting(tmp_path, iterations=250_000), CPU)
    assert asked[0][0] == Variant(precision="fp32", channels_last=False)
    assert (step.precision, step.channels_last) == ("bf16", True)
    first = float(step(*batch(0), 0))
    assert all(float(step(*batch(0), 0)) == pytest.approx(first, abs=0.5) for _ in range(2))
    for weight, state in optimizer.state.items():
        # The strides of sides of 1 say nothing about the order in memory, and differ between processors.
        both = zip(weight.shape, weight.stride(), state["momentum_buffer"].stride(), strict=True)
        assert all(one == other for side, one, other in both if side > 1)


@pytest.mark.parametrize("others", [{"iterations": 999}, {"iterations": 250_000, "several_ranks": True}])
def test_short_trainings_and_several_ranks_measure_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "fastest_variant", lambda *_, **__: pytest.fail("measured"))
    net = network()
    step, _ = module.make_step(net, objective(loss()), sgd(net), setting(tmp_path, **others), CPU)
    assert (step.precision, step.channels_last) == ("fp32", False)


def test_other_optimizers_stay_as_they_are() -> None:
    optimizer = torch.optim.AdamW(network().parameters())
    assert module.fused_optimizer(optimizer) is optimizer
    net = network()
    fused = module.fused_optimizer(sgd(net))
    [group] = fused.param_groups
    assert group["fused"]
    assert {key: group[key] for key in ("lr", "momentum", "nesterov", "weight_decay")} == {
        "lr": 1e-2, "momentum": 0.99, "nesterov": True, "weight_decay": 3e-5,
    }  # fmt: skip
    fused.load_state_dict(copy.deepcopy(sgd(net).state_dict()))
    assert fused.param_groups[0]["fused"]
