"""`SupervisedTrainer`: MONAI's, with Hasten's step inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer as MonaiSupervisedTrainer
from monai.engines import Trainer
from monai.engines.utils import IterationEvents, default_metric_cmp_fn
from monai.utils.enums import CommonKeys as Keys
from torch import Tensor, nn

from hasten.distribute.strategy import without_sync
from hasten.monai.workflow.base import QuickWorkflow
from hasten.monai.workflow.batch import detached, float32, lay_out, like, plain, prepare_batch
from hasten.nets.surgery.fallback import slice_strided
from hasten.nets.wrappers import unwrapped
from hasten.observe.ranges import BACKWARD, FORWARD, OPTIMIZER, Range
from hasten.optim.base import lay_out_moments


class SupervisedTrainer(QuickWorkflow, MonaiSupervisedTrainer):
    """MONAI's `SupervisedTrainer`: its arguments, in its order, its events, and what its handlers find in `state`.

    Nothing is computed that no handler reads: outputs are decollated on first access, metatensors pass the network
    and the loss as plain tensors, and the loss stays on the device until outputs are read. Gradients
    are dropped before a step (`optim_set_to_none`), never filled with 0. Losses are computed in float32. A batch may be
    a dict, an (image, label) pair or what else `prepare_batch` takes, so that a `Feed` can be the
    loader; they know no length, so give `epoch_length`. A part of the network that was put into evaluation mode stays
    in it, as long as the network is in training mode.

    Beyond MONAI's:

    precision: "fp32", "tf32", "bf16" or "fp16"; None leaves torch's setting, or with `amp` takes bf16 on a CPU and on
    a GPU that supports it, else fp16 with `trainer.scaler`. channels_last: weights and images in that memory format.

    Raises ValueError naming the argument that is wrong.
    """

    # fmt: off
    def __init__(
        self, device: str | torch.device, max_epochs: int, train_data_loader: Iterable[Any], network: nn.Module,
        optimizer: torch.optim.Optimizer, loss_function: Callable[..., Any], epoch_length: int | None = None,
        non_blocking: bool = False, prepare_batch: Callable[..., Any] = prepare_batch,
        iteration_update: Callable[[Any, Any], Any] | None = None, inferer: Any = None,
        postprocessing: Callable[..., Any] | None = None, key_train_metric: dict[str, Any] | None = None,
        additional_metrics: dict[str, Any] | None = None, metric_cmp_fn: Callable[..., Any] = default_metric_cmp_fn,
        train_handlers: Sequence[Any] | None = None, amp: bool = False, event_names: list[Any] | None = None,
        event_to_attr: dict[Any, str] | None = None, decollate: bool = True, optim_set_to_none: bool = False,
        to_kwargs: dict[str, Any] | None = None, amp_kwargs: dict[str, Any] | None = None, compile: bool = False,
        compile_kwargs: dict[str, Any] | None = None, accumulation_steps: int = 1, *,
        precision: str | None = None, channels_last: bool = False,
    ) -> None:
        super().__init__(
            device, max_epochs, train_data_loader, network, optimizer, loss_function, epoch_length, non_blocking,
            prepare_batch, iteration_update, inferer, metric_cmp_fn=metric_cmp_fn, amp=amp, event_names=event_names,
            event_to_attr=event_to_attr, decollate=False, optim_set_to_none=optim_set_to_none, to_kwargs=to_kwargs,
            amp_kwargs=amp_kwargs, compile=compile, compile_kwargs=compile_kwargs,
            accumulation_steps=accumulation_steps,
        )
        # fmt: on
        self.channels_last = channels_last
        self._begin(
            own_iteration=iteration_update is None,
            precision=precision,
            decollate=decollate,
            postprocessing=postprocessing,
            key_metric=key_train_metric,
            additional_metrics=additional_metrics,
            handlers=train_handlers,
        )
        self.scaler: torch.amp.GradScaler | None = self.arithmetic.scaler()
        if channels_last:
            slice_strided(unwrapped(network))
            lay_out(unwrapped(network))
            self.add_event_handler(Events.EPOCH_STARTED, lambda: lay_out_moments(self.optimizer))

    def run(self) -> None:
        """Train up to `max_epochs`; called again after that was raised, or from a loaded state, it continues."""
        # Skips MONAI's own `run`, which only makes a new scaler, for CUDA.
        super(Trainer, self).run()

    def _step(self, batch: Any) -> None:
        parts = self._parts(batch)
        first, last = self._turn()
        if not self.network.training:
            self.network.train()
        if first:
            self.optimizer.zero_grad(set_to_none=True)
        with self.arithmetic.step():
            self._forward_backward(*parts, sync=last)
            if last:
                self._apply()
        output = self.state.output
        output[Keys.PRED], output[Keys.LOSS] = detached(output[Keys.PRED]), detached(output[Keys.LOSS])
        self._fire_event(IterationEvents.MODEL_COMPLETED)

    def _turn(self) -> tuple[bool, bool]:
        """Whether this batch is the first one and the last one of an update."""
        joins, state = self.accumulation_steps, self.state
        number, at_end = state.iteration - 1, False
        if state.epoch_length is not None:
            # Batches left over at the end of an epoch make a separate update, as in MONAI.
            number %= state.epoch_length
            at_end = number + 1 == state.epoch_length
        return number % joins == 0, (number + 1) % joins == 0 or at_end

    def _forward_backward(self, image: Any, label: Any, args: Any, kwargs: Any, *, sync: bool) -> None:
        """Forward, loss and backward. sync: whether ranks exchange gradients after it."""
        state = self.state
        state.output = {Keys.IMAGE: image, Keys.LABEL: label}
        with nullcontext() if sync else without_sync(self.network, last=False):
            with Range(FORWARD):
                scores = self._infer(image, args, kwargs)
            state.output[Keys.PRED] = like(scores, image)
            self._fire_event(IterationEvents.FORWARD_COMPLETED)
            scores = float32(state.output[Keys.PRED])
            # The output is read again after each event: a handler may have replaced it.
            with Range(FORWARD):
                loss = self.loss_function(plain(scores), plain(label))
            state.output[Keys.LOSS] = loss.mean() if loss.ndim > 0 else loss
            self._fire_event(IterationEvents.LOSS_COMPLETED)
            loss = state.output[Keys.LOSS]
            self._backward(loss / self.accumulation_steps if self.accumulation_steps > 1 else loss)
        self._fire_event(IterationEvents.BACKWARD_COMPLETED)

    def _backward(self, loss: Tensor) -> None:
        with Range(BACKWARD):
            (self.scaler.scale(loss) if self.scaler is not None else loss).backward()

    def _apply(self) -> None:
        with Range(OPTIMIZER):
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
