"""Hasten's trainer beside MONAI's: the same weights, and the same to see at every event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer as MonaiTrainer
from monai.engines.utils import IterationEvents, PrepareBatchExtraInput
from monai.handlers import SmartCacheHandler as MonaiSmartCacheHandler
from monai.inferers import SimpleInferer
from monai.transforms import Compose
from torch import nn
from torch.utils.data import DataLoader

import hasten.monai.workflow
from hasten.monai.smart import SmartCacheDataset, SmartCacheHandler
from hasten.monai.workflow import SupervisedTrainer
from tests.hot_path import violations
from tests.monai.workflow.parts import Watcher, batches, difference, loss, network, same, snapshot

WATCHED = [
    Events.STARTED,
    Events.EPOCH_STARTED,
    Events.GET_BATCH_COMPLETED,
    Events.ITERATION_STARTED,
    IterationEvents.FORWARD_COMPLETED,
    IterationEvents.LOSS_COMPLETED,
    IterationEvents.BACKWARD_COMPLETED,
    IterationEvents.MODEL_COMPLETED,
    Events.ITERATION_COMPLETED,
    Events.EPOCH_COMPLETED,
    Events.COMPLETED,
]


class Witness(Watcher):
    """Writes down what a handler can see at each event."""

    def look(self, engine: Any, event: Any) -> None:
        state = engine.state
        grads = [weight.grad for weight in engine.network.parameters()]
        seen = [str(event), state.iteration, state.epoch, state.output, state.batch, engine.get_stats("best_metric")]
        self.seen.append(snapshot([*seen, grads, list(engine.network.state_dict().values())]))


def run(kind: Any, data: Any, *, epochs: int = 2, watched: list[Any] = WATCHED, **settings: Any) -> Any:
    # Without it MONAI's trainer shows zeros before the backward pass where there is None.
    settings.setdefault("optim_set_to_none", True)
    net = network()
    witness = Witness(watched)
    trainer = kind(
        "cpu", epochs, data, net, torch.optim.Adam(net.parameters(), lr=0.1), loss, train_handlers=[witness], **settings
    )
    trainer.run()
    return trainer, witness.seen


def same_to_see(data: Any, watched: list[Any] = WATCHED, **settings: Any) -> Any:
    ours, seen = run(SupervisedTrainer, data, watched=watched, **settings)
    theirs, expected = run(MonaiTrainer, data, watched=watched, **settings)
    assert len(seen) == len(expected) > 0
    assert difference(seen, expected) is None
    weights = zip(ours.network.parameters(), theirs.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    return ours


SINGLE = [IterationEvents.MODEL_COMPLETED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED]


@pytest.mark.parametrize("decollate", [True, False])
@pytest.mark.parametrize("meta", [False, True])
def test_every_event_sees_what_it_sees_with_monai(decollate: bool, meta: bool) -> None:
    same_to_see(batches(2, meta=meta), decollate=decollate)
    for event in SINGLE:
        same_to_see(batches(2, meta=meta), [event], decollate=decollate, optim_set_to_none=False)


def test_batches_of_other_kinds() -> None:
    pairs = [(one["image"], one["label"]) for one in batches()]
    same_to_see(pairs)
    same_to_see([list(pair) for pair in pairs])
    same_to_see(DataLoader([(image[0], label[0]) for image, label in pairs], batch_size=2))
    same_to_see(batches(), epoch_length=3)
    same_to_see(batches(1) * 3, [Events.COMPLETED])
    same_to_see(batches(), to_kwargs={"copy": True}, non_blocking=True)


def test_accumulation_over_batches_flushes_at_the_end_of_an_epoch() -> None:
    watched = [Events.ITERATION_COMPLETED]
    for count in (4, 5):
        ours, seen = run(SupervisedTrainer, batches(count), watched=watched, accumulation_steps=2)
        theirs, expected = run(MonaiTrainer, batches(count), watched=watched, accumulation_steps=2)
        assert all(same(one[3], other[3]) for one, other in zip(seen, expected, strict=True))
        weights = zip(ours.network.parameters(), theirs.network.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in weights)


def test_further_inputs_of_the_network_and_an_inferer_of_ones_own() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(1, 2, 1)

        def forward(self, image: torch.Tensor, scale: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
            return self.inner(image) * scale + shift

    class Twice(SimpleInferer):
        def __call__(self, inputs: Any, network: Any, *args: Any, **kwargs: Any) -> Any:
            return network(inputs, *args, shift=1.0, **kwargs) * 2

    data = [{**one, "scale": torch.full((2, 1, 1, 1), 2.0)} for one in batches(meta=True)]
    results = []
    for kind in (SupervisedTrainer, MonaiTrainer):
        torch.manual_seed(0)
        net = Scaled()
        witness = Witness(SINGLE)
        kind(
            "cpu", 1, data, net, torch.optim.SGD(net.parameters(), lr=0.1), loss, inferer=Twice(),
            prepare_batch=PrepareBatchExtraInput(["scale"]), train_handlers=[witness],
        ).run()  # fmt: skip
        results.append(witness.seen)
    assert same(*results)


def test_the_graph_does_not_outlive_the_step() -> None:
    trainer, _ = run(SupervisedTrainer, batches(), watched=[], decollate=False)
    assert not trainer.state.output["pred"].requires_grad
    assert not trainer.state.output["loss"].requires_grad


def test_the_step_reads_no_value_of_the_device() -> None:
    """Of whole files, as `tests/test_hot_path.py` does it."""
    assert violations(Path(hasten.monai.workflow.__file__).read_text(encoding="utf-8")) == []


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
