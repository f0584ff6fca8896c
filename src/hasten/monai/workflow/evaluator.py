"""`SupervisedEvaluator`: MONAI's, with Hasten's arithmetic and without its costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from monai.engines import SupervisedEvaluator as MonaiSupervisedEvaluator
from monai.engines.utils import IterationEvents, default_metric_cmp_fn
from monai.utils.enums import CommonKeys as Keys
from torch import nn

from hasten.monai.workflow.base import QuickWorkflow
from hasten.monai.workflow.batch import lay_out, like, prepare_batch
from hasten.nets.wrappers import unwrapped


class SupervisedEvaluator(QuickWorkflow, MonaiSupervisedEvaluator):
    """MONAI's `SupervisedEvaluator`: its arguments, in its order, its events, and what its handlers find in `state`.

    precision, channels_last: as for `SupervisedTrainer`;
    with a custom inferer, metatensors reach the inferer.

    Raises ValueError naming the argument that is wrong.
    """

    # fmt: off
    def __init__(
        self, device: str | torch.device, val_data_loader: Iterable[Any], network: nn.Module,
        epoch_length: int | None = None, non_blocking: bool = False, prepare_batch: Callable[..., Any] = prepare_batch,
        iteration_update: Callable[[Any, Any], Any] | None = None, inferer: Any = None,
        postprocessing: Callable[..., Any] | None = None, key_val_metric: dict[str, Any] | None = None,
        additional_metrics: dict[str, Any] | None = None, metric_cmp_fn: Callable[..., Any] = default_metric_cmp_fn,
        val_handlers: Sequence[Any] | None = None, amp: bool = False, mode: Any = "eval",
        event_names: list[Any] | None = None, event_to_attr: dict[Any, str] | None = None, decollate: bool = True,
        to_kwargs: dict[str, Any] | None = None, amp_kwargs: dict[str, Any] | None = None, compile: bool = False,
        compile_kwargs: dict[str, Any] | None = None, *,
        precision: str | None = None, channels_last: bool = False,
    ) -> None:
        super().__init__(
            device, val_data_loader, network, epoch_length, non_blocking, prepare_batch, iteration_update, inferer,
            metric_cmp_fn=metric_cmp_fn, amp=amp, mode=mode, event_names=event_names, event_to_attr=event_to_attr,
            decollate=False, to_kwargs=to_kwargs, amp_kwargs=amp_kwargs, compile=compile,
            compile_kwargs=compile_kwargs,
        )
        # fmt: on
        self.channels_last = channels_last
        if channels_last:
            lay_out(unwrapped(network))
        self._begin(
            own_iteration=iteration_update is None,
            precision=precision,
            decollate=decollate,
            postprocessing=postprocessing,
            key_metric=key_val_metric,
            additional_metrics=additional_metrics,
            handlers=val_handlers,
        )

    def _step(self, batch: Any) -> None:
        image, label, args, kwargs = self._parts(batch)
        self.state.output = {Keys.IMAGE: image, Keys.LABEL: label}
        with self.mode(self.network), self.arithmetic.step():
            scores = self._infer(image, args, kwargs)
        self.state.output[Keys.PRED] = like(scores, image)
        self._fire_event(IterationEvents.FORWARD_COMPLETED)
        self._fire_event(IterationEvents.MODEL_COMPLETED)
