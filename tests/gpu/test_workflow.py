"""The workflows on a CUDA device: no wait for the device in a step, and arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ignite.engine import Events
from torch import nn

from hasten.monai.workflow import SupervisedTrainer
from tests.monai.workflow.parts import batches, loss, network


def on_device(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: one[key].cuda() for key in ("image", "label")} for one in data]


def trainer_of(net: nn.Module, epochs: int = 1, **settings: Any) -> SupervisedTrainer:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, fused=True)
    return SupervisedTrainer("cuda", epochs, on_device(batches()), net, optimizer, loss, **settings)


@pytest.mark.parametrize("settings", [{}, {"amp": True}, {"precision": "bf16"}, {"precision": "tf32"}])
def test_a_step_never_waits_for_the_device(settings: dict[str, Any]) -> None:
    net = network().cuda()
    trainer_of(net, **settings).run()  # what is set up once may wait
    trainer = trainer_of(net, epochs=2, **settings)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: torch.cuda.set_sync_debug_mode("error"))
    try:
        trainer.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # The loss is there for who asks, and only then.
    assert isinstance(trainer.state.output[0]["loss"], float)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_precisions_agree(precision: str) -> None:
    plain, net = network().cuda(), network().cuda()
    trainer_of(plain, precision="fp32").run()
    trainer = trainer_of(net, precision=precision)
    trainer.run()
    assert (trainer.scaler is not None and trainer.scaler.is_enabled()) == (precision == "fp16")
    for one, other in zip(plain.parameters(), net.parameters(), strict=True):
        assert (one - other).abs().max() < 0.1


def test_batches_of_the_host_are_moved() -> None:
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = SupervisedTrainer("cuda", 1, batches(meta=True), net, optimizer, loss, non_blocking=True)
    trainer.run()
    assert trainer.state.output[0]["pred"].device.type == "cuda"
    assert trainer.state.output[0]["pred"].meta["filename_or_obj"] == "case 3.0"
