"""Base of trainer and evaluator: lazy state, precision, cheap events, MONAI's order of registration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from ignite.engine import State
from monai.data import decollate_batch
from monai.engines.utils import IterationEvents
from monai.inferers import SimpleInferer

from hasten.monai.workflow.batch import as_laid_out, plain
from hasten.runtime.precision import DTYPES, scaler_for, tensor_cores


class QuickWorkflow:
    """Mixin placed before a workflow class of MONAI. A step computes nothing that no handler needs."""

    state: Any
    inferer: Any
    network: Any
    compile: bool
    channels_last: bool
    arithmetic: Arithmetic
    _takes_apart = False

    def _begin(
        self,
        *,
        own_iteration: bool,
        precision: str | None,
        decollate: bool,
        postprocessing: Callable[..., Any] | None,
        key_metric: dict[str, Any] | None,
        additional_metrics: dict[str, Any] | None,
        handlers: Sequence[Any] | None,
    ) -> None:
        """Finish MONAI's own set-up, which got none of the last five arguments, in its order.

        own_iteration: no `iteration_update` was given.
        """
        self.state = LateState(**vars(self.state))
        engine: Any = self
        if own_iteration and type(self)._iteration is QuickWorkflow._iteration:
            engine._process_function = self._quick_iteration
        self.arithmetic = Arithmetic.of(
            self.state.device, amp=engine.amp, amp_kwargs=engine.amp_kwargs, precision=precision
        )
        self._takes_apart = decollate
        if postprocessing is not None:
            engine._register_postprocessing(postprocessing)
        if key_metric is not None:
            engine._register_metrics(key_metric, additional_metrics)
        if handlers is not None:
            engine._register_handlers(handlers)

    def _step(self, batch: Any) -> None:
        raise NotImplementedError

    def _iteration(self, engine: Any, batchdata: Any) -> Any:
        self._step(batchdata)
        return self.state.output

    def _quick_iteration(self, engine: Any, batchdata: Any) -> Any:
        # ignite puts what this returns into `state.output`, which must not be taken apart for that.
        self._step(batchdata)
        return KEEP

    def _fire_event(self, event_name: Any, *event_args: Any, **event_kwargs: Any) -> None:
        engine: Any = self
        if self._takes_apart and event_name is IterationEvents.MODEL_COMPLETED:
            self.state.take_apart()
        if engine._event_handlers.get(event_name) or engine.logger.isEnabledFor(logging.DEBUG):
            super()._fire_event(event_name, *event_args, **event_kwargs)  # type: ignore[misc]
        else:
            engine.last_event_name = event_name

    def _parts(self, batch: Any) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
        """Image, label, and further arguments of the network."""
        if batch is None:
            raise ValueError("Must provide batch data for current iteration.")
        engine: Any = self
        parts = engine.prepare_batch(batch, self.state.device, engine.non_blocking, **engine.to_kwargs)
        return (*parts, (), {}) if len(parts) == 2 else parts

    def _infer(self, image: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The network's output with its graph; without meta data where the network saw none of them."""
        direct = type(self.inferer) is SimpleInferer
        if direct or self.compile:
            image = plain(image)
        if self.channels_last:
            image = as_laid_out(image)
        with self.arithmetic.forward():
            if direct:
                return self.network(image, *args, **kwargs)
            return self.inferer(image, self.network, *args, **kwargs)


KEEP = object()
"""Keeps the existing output when given as the output, and does not decollate it."""


class LateState(State):
    """ignite's state. After `take_apart` the next reader of `batch` and `output` gets them as lists of samples."""

    def __init__(self, **values: Any) -> None:
        self._batch = self._output = None
        self._batch_whole = self._output_whole = False
        super().__init__(**values)

    def take_apart(self) -> None:
        """Defer the decollation that MONAI's trainer does on MODEL_COMPLETED."""
        self._batch_whole = isinstance(self._batch, (list, dict))
        self._output_whole = isinstance(self._output, (list, dict))

    @property
    def batch(self) -> Any:
        if self._batch_whole:
            self._batch_whole = False
            self._batch = decollate_batch(self._batch)
        return self._batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._batch, self._batch_whole = value, False

    @property
    def output(self) -> Any:
        if self._output_whole:
            self._output_whole = False
            self._output = decollate_batch(self._output)
        return self._output

    @output.setter
    def output(self, value: Any) -> None:
        if value is not KEEP:
            self._output, self._output_whole = value, False


PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """`with arithmetic.forward():` around a forward pass."""

    device: torch.device
    precision: str | None
    """A name of `PRECISIONS`; None keeps torch's setting."""
    autocasts: dict[str, Any]
    """Arguments of `torch.autocast` for a 16-bit precision, `device_type` included."""

    @classmethod
    def of(
        cls, device: torch.device | None, *, amp: bool, amp_kwargs: dict[str, Any], precision: str | None
    ) -> Arithmetic:
        """amp alone takes bf16 on a CPU and on a GPU that supports it, fp16 elsewhere, or the dtype of `amp_kwargs`."""
        where = device or torch.device("cpu")
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}: one of {', '.join(PRECISIONS)}")
        if amp and precision in ("fp32", "tf32"):
            raise ValueError(
                f"amp=True is 16-bit arithmetic, and precision={precision!r} is not: leave one of them out"
            )
        if precision is None and amp:
            precision = _sixteen_bits(where, amp_kwargs.get("dtype"))
        dtype = DTYPES.get(precision or "")
        autocasts = {"device_type": where.type, "dtype": dtype, **amp_kwargs} if dtype is not None else {}
        return cls(device=where, precision=precision, autocasts=autocasts)

    def forward(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return torch.autocast(**self.autocasts) if self.autocasts else nullcontext()

    def step(self) -> AbstractContextManager[Any]:
        """The context of a whole step, which sets TF32 multiplications on a GPU if `precision` was given."""
        if self.precision is None or self.device.type != "cuda":
            return nullcontext()
        return tensor_cores(self.device, self.precision)

    def scaler(self) -> torch.amp.GradScaler | None:
        """None unless autocast is on; it scales for fp16 only."""
        return scaler_for(self.device, self.precision or "fp32") if self.autocasts else None


def _sixteen_bits(device: torch.device, dtype: torch.dtype | None) -> str:
    if dtype is not None:
        return "fp16" if dtype == torch.float16 else "bf16"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp16"
    return "bf16"
