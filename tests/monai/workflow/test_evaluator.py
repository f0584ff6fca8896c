"""Hasten's evaluator beside MONAI's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from ignite.engine import Events
from monai.engines import Evaluator
from monai.engines import SupervisedEvaluator as MonaiEvaluator
from monai.engines.utils import IterationEvents
from monai.handlers import MeanDice, from_engine
from monai.inferers import SlidingWindowInferer
from monai.transforms import AsDiscreted, Compose

from hasten.monai.workflow import SupervisedEvaluator
from tests.monai.workflow.parts import Watcher, batches, difference, network, snapshot

WATCHED = [
    Events.STARTED,
    IterationEvents.FORWARD_COMPLETED,
    IterationEvents.MODEL_COMPLETED,
    Events.ITERATION_COMPLETED,
    Events.EPOCH_COMPLETED,
]
POST = Compose([AsDiscreted(keys=["pred", "label"], argmax=[True, False], to_onehot=2)])


class Witness(Watcher):
    def look(self, engine: Any, event: Any) -> None:
        state = engine.state
        seen = [str(event), state.iteration, state.output, state.batch, state.metrics, engine.get_stats()]
        self.seen.append(snapshot(seen))


def run(kind: Any, data: Any, watched: list[Any], **settings: Any) -> list[Any]:
    witness = Witness(watched)
    evaluator = kind("cpu", data, network().train(), val_handlers=[witness], **settings)
    evaluator.run(3)
    assert evaluator.network.training
    return witness.seen


def dice() -> dict[str, Any]:
    return {"val_mean_dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))}


@pytest.mark.parametrize("meta", [False, True])
def test_every_event_sees_what_it_sees_with_monai(meta: bool) -> None:
    for watched in (WATCHED, WATCHED[-2:]):
        for settings in (
            lambda: {},
            lambda: {"decollate": False},
            lambda: {"mode": "train", "epoch_length": 3},
            lambda: {"inferer": SlidingWindowInferer((4, 4), 2, overlap=0.5)},
            lambda: {
                "postprocessing": POST,
                "key_val_metric": dice(),
                "additional_metrics": {"again": dice().popitem()[1]},
            },
        ):
            data = batches(3, meta=meta)
            ours = run(SupervisedEvaluator, data, watched, **settings())
            theirs = run(MonaiEvaluator, data, watched, **settings())
            assert difference(ours, theirs) is None


def test_arguments_are_monais_in_monais_order() -> None:
    ours = list(inspect.signature(SupervisedEvaluator).parameters.values())
    theirs = list(inspect.signature(MonaiEvaluator).parameters.values())
    assert [one.name for one in ours[: len(theirs)]] == [other.name for other in theirs]
    for one, other in zip(ours, theirs, strict=False):
        assert one.kind == other.kind
        assert one.default == other.default
    assert issubclass(SupervisedEvaluator, Evaluator)
