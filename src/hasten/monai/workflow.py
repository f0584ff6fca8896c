"""`SupervisedTrainer` and `SupervisedEvaluator`: MONAI's, with Hasten's step and without their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from ignite.engine import Events, State
from monai.data import MetaTensor, decollate_batch
from monai.engines import SupervisedEvaluator as MonaiSupervisedEvaluator
from monai.engines import SupervisedTrainer as MonaiSupervisedTrainer
from monai.engines import Trainer
from monai.engines.utils import IterationEvents, default_metric_cmp_fn, default_prepare_batch
from monai.inferers import SimpleInferer
from monai.utils.enums import CommonKeys as Keys
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hasten.devices import multiplies_bf16
from hasten.distribute.strategy import without_sync
from hasten.nets.losses.overlap import plain as without_meta
from hasten.nets.surgery.fallback import slice_strided
from hasten.nets.surgery.layout import as_last
from hasten.nets.weights import unwrapped
from hasten.observe.ranges import BACKWARD, FORWARD, OPTIMIZER, Range
from hasten.optim.base import lay_out_moments
from hasten.runtime.allocator import kept_memory
from hasten.runtime.precision import DTYPES, scaler_for, tensor_cores


class QuickWorkflow:
    """Mixin placed before a workflow class of MONAI. A step computes nothing that no handler needs."""

    state: Any
    inferer: Any
    network: Any
    compile: bool
    channels_last: bool
    device: torch.device
    precision: str
    """A name of `PRECISIONS`, or "" for torch's own setting."""
    autocasts: dict[str, Any]
    """Arguments of `torch.autocast` around a forward pass; {} for none."""
    _step: Callable[[Any], None]

    def _finish(self, network: nn.Module, precision: str | None, channels_last: bool) -> None:
        """What MONAI's own set-up lacks."""
        engine: Any = self
        self.state.__class__ = LateState
        self.device = device = self.state.device or torch.device("cpu")
        self.precision = settled_precision(device, precision, amp=engine.amp, dtype=engine.amp_kwargs.get("dtype"))
        dtype = DTYPES.get(self.precision)
        self.autocasts = {"device_type": device.type, "dtype": dtype, **engine.amp_kwargs} if dtype is not None else {}
        self.channels_last = channels_last
        if channels_last:
            for weight in unwrapped(network).parameters():  # they stay the same Parameters
                if weight.ndim in (4, 5):
                    weight.data = as_last(weight.data)

    def _register_decollate(self) -> None:
        # Called by MONAI's set-up, whose own handler takes apart what nobody may read.
        engine: Any = self
        engine.add_event_handler(IterationEvents.MODEL_COMPLETED, lambda: self.state.take_apart())

    def _keeping(self) -> AbstractContextManager[Any]:
        """The context of a run: on a CPU, memory that a step frees is kept for the next one, to the end of the run."""
        return kept_memory() if self.device.type == "cpu" else nullcontext()

    def _iteration(self, engine: Any, batchdata: Any) -> Any:
        # ignite puts what this returns into `state.output`, which must not be taken apart for that.
        self._step(batchdata)
        return vars(self.state)["output"]

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
        if self.channels_last and isinstance(image, Tensor) and image.ndim in (4, 5):
            image = as_last(image)
        with torch.autocast(**self.autocasts) if self.autocasts else nullcontext():
            if direct:
                return self.network(image, *args, **kwargs)
            return self.inferer(image, self.network, *args, **kwargs)


def _divided(name: str, *, keeps: bool) -> property:
    """A value of the state that its next reader gets as a list of samples, where it is still whole.

    keeps: whether setting the value that is there already leaves it to be divided.
    """

    def read(state: LateState) -> Any:
        values = state.__dict__
        if name in state.whole:
            state.whole -= {name}
            values[name] = decollate_batch(values[name])
        return values[name]

    def write(state: LateState, value: Any) -> None:
        values = state.__dict__
        if not keeps or value is not values[name]:
            values[name] = value
            state.whole -= {name}

    return property(read, write)


class LateState(State):
    """ignite's state. After `take_apart` the next reader of `batch` and `output` gets them as lists of samples."""

    batch, output = _divided("batch", keeps=False), _divided("output", keeps=True)
    whole: frozenset[str] = frozenset()

    def take_apart(self) -> None:
        """Defer the decollation that MONAI's trainer does on MODEL_COMPLETED."""
        self.whole = frozenset(name for name in ("batch", "output") if isinstance(vars(self)[name], (list, dict)))


PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def settled_precision(device: torch.device, precision: str | None, *, amp: bool, dtype: torch.dtype | None) -> str:
    """The precision, one of `PRECISIONS`, or "" for torch's own setting. Raises ValueError for arguments at odds.

    amp alone takes bf16 on a GPU that supports it, else fp16, or `dtype` where it is given. On a CPU it does nothing,
    as MONAI's does: bf16 is slower there than float32 without instructions for it.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: one of {', '.join(PRECISIONS)}")
    if amp and precision in ("fp32", "tf32"):
        raise ValueError(f"amp=True is 16-bit arithmetic, and precision={precision!r} is not: leave one of them out")
    if precision is not None or not amp or device.type == "cpu":
        return precision or ""
    half = dtype == torch.float16 if dtype is not None else not multiplies_bf16(device)
    return "fp16" if half else "bf16"


class SupervisedTrainer(QuickWorkflow, MonaiSupervisedTrainer):
    """MONAI's `SupervisedTrainer`: its arguments, in its order, its events, and what its handlers find in `state`.

    Nothing is computed that no handler reads: outputs are decollated on first access, metatensors pass the network
    and the loss as plain tensors, and the loss stays on the device until outputs are read. Gradients
    are dropped before a step (`optim_set_to_none`), never filled with 0. Losses are computed in float32. A batch may be
    a dict, an (image, label) pair or what else `prepare_batch` takes, so that a `Feed` can be the
    loader; they know no length, so give `epoch_length`. A part of the network that was put into evaluation mode stays
    in it, as long as the network is in training mode.

    Beyond MONAI's:

    precision: "fp32", "tf32", "bf16" or "fp16"; None leaves torch's setting, or with `amp` takes bf16 on a GPU that
    supports it, else fp16 with `trainer.scaler`. channels_last: weights and images in that memory format.

    Raises ValueError naming the argument that is wrong.
    """

    # fmt: off
    def __init__(
        self, device: str | torch.device, max_epochs: int, train_data_loader: Iterable[Any], network: nn.Module,
        optimizer: torch.optim.Optimizer, loss_function: Callable[..., Any], epoch_length: int | None = None,
        non_blocking: bool = False, prepare_batch: Callable[..., Any] = default_prepare_batch,
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
            prepare_batch, iteration_update, inferer, postprocessing, key_train_metric, additional_metrics,
            metric_cmp_fn, train_handlers, amp, event_names, event_to_attr, decollate, optim_set_to_none, to_kwargs,
            amp_kwargs, compile, compile_kwargs, accumulation_steps,
        )
        # fmt: on
        if channels_last:
            slice_strided(unwrapped(network))
            self.add_event_handler(Events.EPOCH_STARTED, lambda: lay_out_moments(self.optimizer))
        self._finish(network, precision, channels_last)
        # None unless autocast is on or asked for; it scales for fp16 only.
        self.scaler: torch.amp.GradScaler | None = (
            scaler_for(self.device, self.precision) if self.autocasts or amp else None
        )

    def run(self) -> None:
        """Train up to `max_epochs`; called again after that was raised, or from a loaded state, it continues."""
        # Skips MONAI's own `run`, which only makes a new scaler, for CUDA.
        with self._keeping():
            super(Trainer, self).run()

    def _step(self, batch: Any) -> None:
        parts = self._parts(batch)
        first, last = self._turn()
        if not self.network.training:
            self.network.train()
        if first:
            self.optimizer.zero_grad(set_to_none=True)
        with tensor_cores(self.device, self.precision):
            self._forward_backward(*parts, sync=last)
            if last:
                with Range(OPTIMIZER):
                    if self.scaler is None:
                        self.optimizer.step()
                    else:
                        self.scaler.step(self.optimizer)
                        self.scaler.update()
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
            loss = loss / self.accumulation_steps if self.accumulation_steps > 1 else loss
            with Range(BACKWARD):
                (self.scaler.scale(loss) if self.scaler is not None else loss).backward()
        self._fire_event(IterationEvents.BACKWARD_COMPLETED)


class SupervisedEvaluator(QuickWorkflow, MonaiSupervisedEvaluator):
    """MONAI's `SupervisedEvaluator`: its arguments, in its order, its events, and what its handlers find in `state`.

    precision, channels_last: as for `SupervisedTrainer`;
    with a custom inferer, metatensors reach the inferer.

    Raises ValueError naming the argument that is wrong.
    """

    # fmt: off
    def __init__(
        self, device: str | torch.device, val_data_loader: Iterable[Any], network: nn.Module,
        epoch_length: int | None = None, non_blocking: bool = False,
        prepare_batch: Callable[..., Any] = default_prepare_batch,
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
            postprocessing, key_val_metric, additional_metrics, metric_cmp_fn, val_handlers, amp, mode, event_names,
            event_to_attr, decollate, to_kwargs, amp_kwargs, compile, compile_kwargs,
        )
        # fmt: on
        self._finish(network, precision, channels_last)

    def run(self, global_epoch: int = 1) -> None:
        """Evaluate once. global_epoch: the number of the epoch that handlers are told."""
        with self._keeping():
            super().run(global_epoch)

    def _step(self, batch: Any) -> None:
        image, label, args, kwargs = self._parts(batch)
        self.state.output = {Keys.IMAGE: image, Keys.LABEL: label}
        with self.mode(self.network), tensor_cores(self.device, self.precision):
            scores = self._infer(image, args, kwargs)
        self.state.output[Keys.PRED] = like(scores, image)
        self._fire_event(IterationEvents.FORWARD_COMPLETED)
        self._fire_event(IterationEvents.MODEL_COMPLETED)


def plain(value: Any) -> Any:
    """A metatensor without its meta data, sharing memory, in lists, tuples and dicts too; others as they are."""
    return tree_map_only(MetaTensor, without_meta, value)


def like(value: Any, image: Any) -> Any:
    """`value` (what a network made of `image`) with the meta data that MONAI's tensors would have handed down."""
    if not isinstance(image, MetaTensor):
        return value
    if isinstance(value, (list, tuple)):
        return getattr(type(value), "_make", type(value))(like(one, image) for one in value)
    if type(value) is not Tensor:
        return value
    with torch._C.DisableTorchFunctionSubclass():
        dressed = value.as_subclass(MetaTensor)
    return dressed.copy_meta_from(image, copy_attr=not image.is_batch)


def detached(value: Any) -> Any:
    """`value` without the graph, in lists, tuples and dicts too."""
    return _with_tensors(lambda tensor: like(plain(tensor).detach(), tensor), value)


def float32(value: Any) -> Any:
    """16-bit scores as float32, which losses are computed in; in lists, tuples and dicts too."""

    def widen(scores: Tensor) -> Tensor:
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores

    return _with_tensors(widen, value)


def _with_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    # torch's tree_map leaves classes derived from list and dict, and other mappings, as they are.
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return getattr(type(value), "_make", type(value))(_with_tensors(change, one) for one in value)
    if isinstance(value, Mapping):
        return {key: _with_tensors(change, one) for key, one in value.items()}
    return value
