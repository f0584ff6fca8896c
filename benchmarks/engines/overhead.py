"""What a trainer and its handlers cost beside the step itself, on a network that costs next to nothing."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 500
"""Of one arm, before the next one has its turn."""


def overhead_times(rounds: int) -> dict[str, list[float]]:
    """Microseconds a step, on one thread: `bare loop`, `ignite engine`, `MONAI trainer`, `Hasten trainer`, of each
    round. Both trainers carry StatsHandler (with nothing to print), CheckpointSaver at the epoch's end, which is the
    round's, and LrScheduleHandler.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.getLogger("overhead").setLevel(logging.INFO)
    arms: dict[str, Callable[[], float]] = {
        "bare loop": _bare,
        "ignite engine": _ignite,
        "MONAI trainer": lambda: _trainer("monai"),
        "Hasten trainer": lambda: _trainer("hasten"),
    }
    try:
        for once in arms.values():
            once()
        results: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(rounds):
            for name, once in arms.items():
                results[name].append(1e6 * once() / STEPS)
    finally:
        torch.set_num_threads(before)
    return results


def _parts() -> tuple[Any, Any, Any, list[dict[str, Any]]]:
    """Network, optimizer, loss and the batches of a round."""
    import torch

    torch.manual_seed(0)
    network = torch.nn.Conv2d(1, 2, 1)
    batch = {"image": torch.randn(2, 1, 4, 4), "label": torch.randint(0, 2, (2, 4, 4))}
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    return network, optimizer, torch.nn.CrossEntropyLoss(), [batch] * STEPS


def _bare() -> float:
    network, optimizer, loss, batches = _parts()
    begin = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()
        optimizer.step()
    return time.perf_counter() - begin


def _ignite() -> float:
    from ignite.engine import Engine

    network, optimizer, loss, batches = _parts()

    def step(engine: Engine, batch: dict[str, Any]) -> Any:
        optimizer.zero_grad()
        value = loss(network(batch["image"]), batch["label"])
        value.backward()
        optimizer.step()
        return value.detach()

    engine = Engine(step)
    begin = time.perf_counter()
    engine.run(batches)
    return time.perf_counter() - begin


def _trainer(whose: str) -> float:
    import torch
    from monai.engines import SupervisedTrainer as MonaiTrainer
    from monai.handlers import CheckpointSaver, LrScheduleHandler, StatsHandler

    from hasten.monai.workflow import SupervisedTrainer

    network, optimizer, loss, batches = _parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with tempfile.TemporaryDirectory() as folder:
        handlers = [
            StatsHandler(name="overhead", output_transform=lambda output: None),
            CheckpointSaver(str(Path(folder)), {"network": network}, name="overhead", save_interval=1),
            LrScheduleHandler(schedule, print_lr=False, name="overhead"),
        ]
        kind = SupervisedTrainer if whose == "hasten" else MonaiTrainer
        trainer = kind("cpu", 1, batches, network, optimizer, loss, train_handlers=handlers)
        begin = time.perf_counter()
        trainer.run()
        return time.perf_counter() - begin
