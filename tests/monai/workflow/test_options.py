"""What Hasten's trainer takes beyond MONAI's, against plain loops."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from monai.transforms import Compose, RandSpatialCropd
from torch import nn

from hasten.augment.from_monai import compile_transforms
from hasten.cache.dataset import CacheDataset
from hasten.feed.feed import Feed
from hasten.monai.workflow import SupervisedTrainer
from tests.monai.workflow.parts import batches, loss, network


def trainer_of(net: nn.Module, data: Any = None, *, epochs: int = 1, **settings: Any) -> SupervisedTrainer:
    optimizer = settings.pop("optimizer", None) or torch.optim.SGD(net.parameters(), lr=0.5)
    return SupervisedTrainer("cpu", epochs, batches() if data is None else data, net, optimizer, loss, **settings)


def trained(**settings: Any) -> nn.Module:
    net = network()
    trainer_of(net, **settings).run()
    return net


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"amp": True, "precision": "bf16"}])
def test_bf16_on_a_cpu_has_its_loss_in_float32(settings: dict[str, Any]) -> None:
    dtypes: set[Any] = set()

    def watched(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        assert not torch.is_autocast_enabled("cpu")
        dtypes.add(scores.dtype)
        return loss(scores, label)

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = SupervisedTrainer("cpu", 1, batches(), net, optimizer, watched, decollate=False, **settings)
    trainer.run()
    assert trainer.state.output["pred"].dtype == torch.bfloat16
    assert trainer.state.output["loss"].dtype == torch.float32
    assert dtypes == {torch.float32}
    assert trainer.scaler is not None
    assert not trainer.scaler.is_enabled()
    assert trainer.scaler.get_scale() == 1


class Two(NamedTuple):
    main: torch.Tensor
    aux: torch.Tensor


class Named(dict[str, torch.Tensor]):
    pass


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("form", [Two, Named, UserDict, OrderedDict])
def test_outputs_of_any_kind_reach_the_loss_in_float32_and_leave_without_their_graph(form: Any, meta: bool) -> None:
    class Net(nn.Conv2d):
        def forward(self, image: torch.Tensor) -> Any:
            scores = super().forward(image)
            return Two(scores, scores) if form is Two else form(main=scores, aux=scores)

    def main(output: Any) -> torch.Tensor:
        scores: torch.Tensor = output[0] if form is Two else output["main"]
        return scores

    def watched(output: Any, label: torch.Tensor) -> torch.Tensor:
        assert main(output).dtype == torch.float32
        return loss(main(output), label)

    net = Net(1, 2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    given: dict[str, Any] = {"precision": "bf16", "decollate": False}
    trainer = SupervisedTrainer("cpu", 1, batches(meta=meta), net, optimizer, watched, **given)
    trainer.run()
    assert not main(trainer.state.output["pred"]).requires_grad


def test_amp_alone_on_a_cpu_does_nothing_as_in_monai() -> None:
    net = network()
    trainer = trainer_of(net, amp=True, decollate=False)
    trainer.run()
    assert trainer.state.output["pred"].dtype == torch.float32
    assert distance(net, trained()) == 0
    assert trainer.scaler is not None
    assert not trainer.scaler.is_enabled()


def test_fp16_goes_through_a_scaler_that_can_be_saved() -> None:
    net = network()
    trainer = trainer_of(net, precision="fp16")
    assert trainer.scaler is not None
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 1024.0, "growth_interval": 2})
    trainer.run()
    assert trainer.scaler.get_scale() == 4096
    assert distance(net, trained()) < 0.02


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "int8"}, "precision='int8': one of fp32"),
        ({"precision": "fp32", "amp": True}, "leave one of them out"),
        ({"accumulation_steps": 0}, "accumulation_steps"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trainer_of(network(), **settings)


class Item:
    deterministic = True

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def rows(shape: tuple[int, ...]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"image": rng.random((1, *shape), np.float32), "label": rng.integers(0, 2, (1, *shape)).astype(np.uint8)}
        for _ in range(3)
    ]


@pytest.mark.parametrize("dims", [2, 3])
def test_a_feed_is_a_loader(dims: int) -> None:
    chain = Compose([Item(), RandSpatialCropd(["image", "label"], (4,) * dims)])
    program = compile_transforms(chain).bind(CacheDataset(rows((6, 7, 8)[:dims]), chain, progress=False), batch_size=2)
    feed = Feed(program, last=6)
    net = (nn.Conv2d if dims == 2 else nn.Conv3d)(1, 2, 1)
    other = copy.deepcopy(net)
    trainer_of(net, feed, epochs=2, epoch_length=3).run()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    for batch in Feed(program, last=6):
        loss(other(batch["image"]), batch["label"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert distance(net, other) == 0
    assert feed.wait_seconds > 0
