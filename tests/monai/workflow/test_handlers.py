"""MONAI's and ignite's handlers, unchanged: each does with Hasten's workflows what it does with MONAI's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator as MonaiEvaluator
from monai.engines import SupervisedTrainer as MonaiTrainer
from monai.handlers import (
    CheckpointLoader,
    CheckpointSaver,
    EarlyStopHandler,
    MeanDice,
    ValidationHandler,
    from_engine,
)
from monai.handlers import SmartCacheHandler as MonaiSmartCacheHandler
from monai.transforms import AsDiscreted, Compose
from torch.utils.data import DataLoader

from hasten.monai.smart import SmartCacheDataset
from hasten.monai.workflow import SmartCacheHandler, SupervisedEvaluator, SupervisedTrainer
from tests.monai.workflow.parts import batches, difference, loss, network, snapshot

KINDS = [(MonaiTrainer, MonaiEvaluator), (SupervisedTrainer, SupervisedEvaluator)]
POST = Compose([AsDiscreted(keys=["pred", "label"], argmax=[True, False], to_onehot=2)])


class Setting:
    """A trainer and an evaluator of one kind, before their handlers are known."""

    def __init__(self, kinds: tuple[Any, Any]) -> None:
        self.kinds, self.network = kinds, network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.05)

    def trainer(self, handlers: list[Any], *, epochs: int = 2, data: Any = None, **settings: Any) -> Any:
        data = batches() if data is None else data
        return self.kinds[0](
            "cpu", epochs, data, self.network, self.optimizer, loss, train_handlers=handlers, **settings
        )

    def evaluator(self, handlers: list[Any]) -> Any:
        metric = MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))
        return self.kinds[1](
            "cpu", batches(2), self.network, postprocessing=POST, key_val_metric={"val_mean_dice": metric},
            val_handlers=handlers,
        )  # fmt: skip


def both(use: Callable[[Setting, Path], Any], folder: Path) -> Any:
    """What `use` returns, which must be the same with either kind."""
    results = []
    for number, kinds in enumerate(KINDS):
        (folder / str(number)).mkdir()
        results.append(snapshot(use(Setting(kinds), folder / str(number))))
    assert difference(*results) is None
    return results[1]


def test_checkpoints_hold_the_same_and_a_loaded_one_goes_on(tmp_path: Path) -> None:
    def contents(setting: Setting, trainer: Any) -> dict[str, Any]:
        return {"net": setting.network, "opt": setting.optimizer, "trainer": trainer}

    def use(setting: Setting, folder: Path) -> Any:
        trainer = setting.trainer([])
        CheckpointSaver(str(folder), contents(setting, trainer), save_interval=1, save_final=True).attach(trainer)
        trainer.run()
        names = sorted(path.name for path in folder.glob("*.pt"))
        saved = [torch.load(folder / name, weights_only=True) for name in names]
        again = Setting(setting.kinds)
        other = again.trainer([], epochs=4)
        CheckpointLoader(str(folder / "checkpoint_epoch=2.pt"), contents(again, other)).attach(other)
        other.run()
        whole = Setting(setting.kinds)
        whole.trainer([], epochs=4).run()
        assert difference(snapshot(again.network.state_dict()), snapshot(whole.network.state_dict())) is None
        return names, saved, other.state.iteration

    names, _, iteration = both(use, tmp_path)
    assert names == ["checkpoint_epoch=1.pt", "checkpoint_epoch=2.pt", "checkpoint_final_iteration=8.pt"]
    assert iteration == 16


def test_validation_early_stop_and_the_best_checkpoint(tmp_path: Path) -> None:
    def use(setting: Setting, folder: Path) -> Any:
        stop = EarlyStopHandler(patience=1, score_function=lambda engine: -engine.state.epoch)
        saver = CheckpointSaver(str(folder), {"net": setting.network}, save_key_metric=True)
        evaluator = setting.evaluator([saver, stop])
        trainer = setting.trainer([ValidationHandler(1, evaluator, exec_at_start=True)], epochs=9)
        stop.set_trainer(trainer)
        trainer.run()
        saved = {path.name: torch.load(path, weights_only=True) for path in folder.glob("*.pt")}
        return saved, trainer.state.epoch, evaluator.state.best_metric, evaluator.state.metric_details

    saved, epoch, best, _ = both(use, tmp_path)
    assert list(saved) == [f"net_key_metric={best:.4f}.pt"]
    assert epoch < 9


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
