"""The phases of a training are ranges in a profile, whatever loop they are part of."""

from __future__ import annotations

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hasten.monai.thread_loader import ThreadDataLoader
from hasten.monai.workflow import SupervisedTrainer
from hasten.observe.ranges import BACKWARD, FORWARD, LOADING, OPTIMIZER


def test_a_workflow_s_phases() -> None:
    net = nn.Conv2d(1, 2, 3, padding=1)
    data = [{"image": torch.ones(1, 4, 4), "label": torch.zeros(2, 4, 4)} for _ in range(4)]
    trainer = SupervisedTrainer(
        "cpu", 1, ThreadDataLoader(data, batch_size=2), net, torch.optim.SGD(net.parameters(), lr=0.1),
        nn.MSELoss(),
    )  # fmt: skip
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.run()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert (counts[BACKWARD], counts[OPTIMIZER]) == (2, 2)
    assert counts[FORWARD] == 4  # the network and the loss, with an event between
    assert counts[LOADING] >= 2
