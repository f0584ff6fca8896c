from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hasten.nets.freeze import freeze_norms, freeze_parameters


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, affine=False), nn.InstanceNorm2d(4)),
        nn.Conv2d(4, 2, 1),
    )


def test_named_parameters_need_no_gradient() -> None:
    net = network()
    assert freeze_parameters(net, ("0.*", "*.bias")) == ("0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "1.0.bias",
                                                         "2.bias")  # fmt: skip
    assert [name for name, weight in net.named_parameters() if weight.requires_grad] == ["1.0.weight", "2.weight"]
    assert freeze_parameters(net, ()) == ()


def test_statistics_of_frozen_norms_stay() -> None:
    net = network()
    before = copy.deepcopy(net)
    assert freeze_norms(net, ("0.*",)) == ("0.1",)
    assert freeze_norms(net, ("0.1.weight", "1.*")) == ("1.1",)
    image = torch.randn(2, 1, 9, 9)
    for module in (net.train(), copy.deepcopy(net).train()):
        norm = module[0][1]
        assert not norm.training
        assert module.training
        inside = before[0].eval()(image)
        assert torch.equal(module[0](image), inside)
        module(image)
        assert torch.equal(norm.running_mean, before[0][1].running_mean)
        assert norm.num_batches_tracked == 0
    other = before.train()
    other(image)
    assert other[0][1].num_batches_tracked == 1


def test_a_norm_trained_in_part_goes_on() -> None:
    net = network()
    assert freeze_norms(net, ("0.1.weight",)) == ()
    assert net.train()[0][1].training


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("0.0.weigh", r"^train\.freeze: '0\.0\.weigh' fits .*near are 0\.0\.weight"),
        ("zzz", r"there are 0\.0\.weight, 0\.0\.bias, 0\.1\.weight and 5 more"),
        ("*", r"^train\.freeze: \* .*0\.0\.weight, .* 5 more; leave"),
    ],
)
def test_bad_patterns_change_nothing(pattern: str, message: str) -> None:
    net = network()
    with pytest.raises(ValueError, match=message):
        freeze_parameters(net, (pattern,), at="train.freeze")
    assert all(weight.requires_grad for weight in net.parameters())
