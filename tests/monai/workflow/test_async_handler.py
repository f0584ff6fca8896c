"""An evaluator beside the training: the same metrics as after it, with the step they belong to."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator as MonaiEvaluator
from monai.handlers import CheckpointSaver, MeanDice, ValidationHandler, from_engine
from monai.transforms import AsDiscreted, Compose

from hasten.monai.workflow import AsyncValidationHandler, SupervisedEvaluator, SupervisedTrainer
from tests.monai.workflow.parts import batches, loss, network

POST = Compose([AsDiscreted(keys=["pred", "label"], argmax=[True, False], to_onehot=2)])


def evaluator_of(net: Any, kind: Any = SupervisedEvaluator, data: Any = None, handlers: Any = ()) -> Any:
    metric = MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))
    return kind(
        "cpu", batches(2) if data is None else data, net, postprocessing=POST, key_val_metric={"dice": metric},
        val_handlers=list(handlers),
    )  # fmt: skip


def train(net: Any, handlers: list[Any], data: Any = None, **settings: Any) -> Any:
    torch.manual_seed(3)
    trainer = SupervisedTrainer(
        "cpu", 3, batches() if data is None else data, net, torch.optim.SGD(net.parameters(), lr=0.2), loss,
        train_handlers=handlers, **settings,
    )  # fmt: skip
    trainer.run()
    return trainer


@pytest.mark.parametrize("kind", [SupervisedEvaluator, MonaiEvaluator])
@pytest.mark.parametrize("epoch_level", [True, False])
def test_metrics_are_those_of_a_validation_in_line(kind: Any, epoch_level: bool) -> None:
    interval = 1 if epoch_level else 4
    net, expected = network(), []
    evaluator = evaluator_of(net, kind)
    evaluator.add_event_handler(Events.COMPLETED, lambda engine: expected.append(engine.state.metrics["dice"]))
    train(net, [ValidationHandler(interval, evaluator, epoch_level=epoch_level)])
    net, got = network(), []
    handler = AsyncValidationHandler(
        interval, evaluator_of(net, kind), epoch_level=epoch_level, when_busy="wait", deliver=got.append
    )
    train(net, [handler])
    assert [(one.step, one.result["dice"]) for one in got] == list(zip((4, 8, 12), expected, strict=True))
    assert handler.last is got[-1]
    assert handler.validation.seconds == pytest.approx(sum(one.seconds for one in got))


def test_the_average_is_what_is_validated_and_saved(tmp_path: Any) -> None:
    net = network()
    trainer = SupervisedTrainer("cpu", 2, batches(), net, torch.optim.SGD(net.parameters(), lr=0.2), loss, average=True)
    evaluator = evaluator_of(trainer.average)
    handler = AsyncValidationHandler(2, evaluator, exec_at_start=True, when_busy="wait")
    CheckpointSaver(str(tmp_path), {"net": handler.network}, save_final=True, final_filename="net.pt").attach(evaluator)
    handler.attach(trainer)
    trainer.run()
    saved = torch.load(tmp_path / "net.pt", weights_only=True)
    assert trainer.average is not None
    assert all(torch.equal(value, saved[key]) for key, value in trainer.average.state_dict().items())
    assert evaluator.network is handler.network is not trainer.average
    assert trainer.average is handler.source


def test_the_last_weights_are_validated_also_where_a_validation_was_skipped() -> None:
    net, got, go_on = network(), [], threading.Event()
    evaluator = evaluator_of(net)
    evaluator.add_event_handler(Events.STARTED, lambda engine: go_on.wait(60))
    handler = AsyncValidationHandler(1, evaluator, deliver=got.append)

    class Opener:
        def attach(self, engine: Any) -> None:
            engine.add_event_handler(Events.COMPLETED, lambda engine: go_on.set())

    train(net, [Opener(), handler])
    assert [one.step for one in got] == [4, 12]
    assert handler.validation.skipped == 2
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), handler.network.parameters(), strict=True))


def test_what_the_evaluator_raises_is_raised_by_the_trainer() -> None:
    net = network()
    evaluator = evaluator_of(net, data=[{"image": "no image"}])
    with pytest.raises(AttributeError) as caught:
        train(net, [AsyncValidationHandler(1, evaluator)])
    assert caught.value.__notes__ == ["while the weights of step 4 were validated"]
