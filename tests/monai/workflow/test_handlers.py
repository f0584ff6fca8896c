"""SmartCacheHandler moves the window of a SmartCacheDataset as MONAI's handler does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.handlers import SmartCacheHandler as MonaiSmartCacheHandler
from monai.transforms import Compose
from torch.utils.data import DataLoader

from hasten.monai.smart import SmartCacheDataset
from hasten.monai.workflow import SmartCacheHandler, SupervisedTrainer
from tests.monai.workflow.parts import loss, network


class Row:
    deterministic = True

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def rows() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"image": rng.random((1, 4, 4), np.float32), "label": rng.integers(0, 2, (1, 4, 4)), "number": number}
        for number in range(5)
    ]


def test_a_smart_cache_moves_with_the_epochs() -> None:
    settings = {"replace_rate": 0.5, "cache_num": 2, "shuffle": False, "progress": False}
    windows = []
    from monai.data import SmartCacheDataset as MonaiDataset

    for dataset, handler in (
        (SmartCacheDataset(rows(), Row(), **settings), SmartCacheHandler),
        (MonaiDataset(rows(), Compose([]), **settings), MonaiSmartCacheHandler),
    ):
        seen: list[list[int]] = []
        net = network()
        trainer = SupervisedTrainer(
            "cpu", 4, DataLoader(dataset, batch_size=2), net, torch.optim.SGD(net.parameters(), lr=0.1), loss,
            train_handlers=[handler(dataset)],
        )  # fmt: skip
        trainer.add_event_handler(
            Events.GET_BATCH_COMPLETED, lambda engine, seen=seen: seen.append(engine.state.batch["number"].tolist())
        )
        trainer.run()
        windows.append(seen)
    assert windows[0] == windows[1] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    with pytest.raises(ValueError, match="list has no start"):
        SmartCacheHandler([])
