"""Handlers for ignite's engines, MONAI's trainers and Hasten's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

from hasten.monai.async_validate import AsyncValidation, Validated
from hasten.nets.wrappers import unwrapped


class SmartCacheHandler:
    """MONAI's handler of this name, which takes no data set but MONAI's own, for `hasten.SmartCacheDataset`."""

    def __init__(self, smartcacher: Any) -> None:
        missing = [name for name in ("start", "update_cache", "shutdown") if not hasattr(smartcacher, name)]
        if missing:
            raise ValueError(
                f"smartcacher: {type(smartcacher).__name__} has no {missing[0]}(); give a SmartCacheDataset"
            )
        self.smartcacher = smartcacher

    def attach(self, engine: Any) -> None:
        """Prepare replacements while `engine` runs, and swap them in after each of its epochs."""
        engine.add_event_handler(Events.STARTED, lambda: self.smartcacher.start())
        engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: self.smartcacher.update_cache())
        engine.add_event_handler(Events.COMPLETED, lambda: self.smartcacher.shutdown())


class AsyncValidationHandler:
    """MONAI's `ValidationHandler`, with the evaluator running on a copy of the weights beside the training.

    validator: an evaluator, of MONAI or of Hasten; its `network` (the trained one, or a trainer's average) is replaced
    by the copy. It runs in its own thread, with its handlers: one that saves weights must
    save `handler.network`. Its loader gets its own generator where it has none, so that it takes no numbers from
    the training's. deliver: called in the trainer's thread, at the end of a later step or of the run, with
    `Validated(step, result, seconds, network)`, whose result is the evaluator's `state.metrics`; the last one is kept
    as `handler.last`. when_busy, threads: as for `AsyncValidation`, which `handler.validation` is; a run that ends
    after a validation was skipped validates its last weights. The rest: as for MONAI's handler. Raises in the trainer
    what the evaluator raised.
    """

    def __init__(
        self,
        interval: int,
        validator: Any,
        epoch_level: bool = True,
        exec_at_start: bool = False,
        *,
        deliver: Callable[[Validated[dict[str, Any]]], None] | None = None,
        when_busy: str = "skip",
        threads: int | None = None,
    ) -> None:
        self.interval, self.validator = interval, validator
        self.epoch_level, self.exec_at_start = epoch_level, exec_at_start
        self.deliver = deliver
        self.source: nn.Module = unwrapped(validator.network)
        self.last: Validated[dict[str, Any]] | None = None
        self.validation: AsyncValidation[dict[str, Any]] = AsyncValidation(
            partial(self._run, epoch=1), self._delivered, like=self.source, when_busy=when_busy, threads=threads
        )
        self._missed = False
        loader = validator.data_loader
        if isinstance(loader, DataLoader) and loader.generator is None:
            loader.generator = torch.Generator()
        validator.network = self.network

    @property
    def network(self) -> nn.Module:
        """The copy that is validated."""
        return self.validation.network

    def attach(self, engine: Any) -> None:
        """Validate every `interval` epochs or iterations of `engine`."""
        event = Events.EPOCH_COMPLETED if self.epoch_level else Events.ITERATION_COMPLETED
        engine.add_event_handler(event(every=self.interval), self)
        if self.exec_at_start:
            engine.add_event_handler(Events.STARTED, self)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: self.validation.poll())
        engine.add_event_handler(Events.COMPLETED, self._finish)

    def __call__(self, engine: Any, when_busy: str | None = None) -> None:
        """Validate the weights as they are now."""
        run = partial(self._run, epoch=engine.state.epoch)
        step = engine.state.iteration
        self._missed = not self.validation.request(self.source, step, validate=run, when_busy=when_busy)

    def _run(self, network: nn.Module, *, epoch: int) -> dict[str, Any]:
        assert network is self.validator.network
        self.validator.run(epoch)
        return dict(self.validator.state.metrics)

    def _delivered(self, validated: Validated[dict[str, Any]]) -> None:
        self.last = validated
        if self.deliver is not None:
            self.deliver(validated)

    def _finish(self, engine: Any) -> None:
        if self._missed:
            self(engine, "wait")
        self.validation.finish()
