"""Builds what is timed: a run's step, its batches, a validation or an update, under one setting, as `train` would."""

from __future__ import annotations

import copy
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.engine.autotune import operated_net
from hasten.engine.components import RunComponents
from hasten.engine.compose import compose_run
from hasten.engine.infer import infer_labels
from hasten.engine.measure import Trace
from hasten.engine.precision import tensor_cores
from hasten.engine.run_plan import RunPlan, build_net, with_train
from hasten.engine.step import TrainStep
from hasten.feed.feed import Feed
from hasten.observe.clock import Clock
from hasten.study.environment.rates import synchronize
from hasten.study.run.probes import first_batch, threads
from hasten.study.tune.search import Kind
from hasten.study.tune.setting import Setting

_RATE = 1e-12
"""Learning rate of timed steps: the weights stay the same, so that losses can be compared."""
_CASES = 4
"""Largest number of validation cases in one timed validation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One setting, ready to be timed."""

    call: Callable[[], float]
    """Seconds of the work of one step of the base's batch (or of one validation, or update)."""
    sibling: Callable[[Kind], Arm] | None = None
    """Makes the arm that times the same network as the other of the kinds step and run."""
    trace: Trace
    """Compared with another arm's: loss and gradient norm, or labels and their number."""
    once: float = 0.0
    """Seconds that compiling took."""
    note: str = ""


class ArmBuilder:
    """Builds arms for one run. Arenas and networks are made once; every arm gets a copy of the same first weights."""

    def __init__(self, planned: RunPlan) -> None:
        # Patches of one size: the smaller ones of a run with stages take little of its time.
        sample = dataclasses.replace(planned.config.sample, stages=(), fit_batch=False)
        self.planned = dataclasses.replace(planned, config=dataclasses.replace(planned.config, sample=sample))
        self.device = planned.device
        self.run_steps = 4
        """Steps of one timed run with batches."""
        self.repeats = 1
        """Steps on one batch that are timed as one, where a single one is too short to be timed."""
        self._arenas: dict[str, Arena] = {}
        self._networks: dict[bool, nn.Module] = {}

    @property
    def batch_size(self) -> int:
        return self.planned.config.sample.batch_size

    def arena(self, home: str) -> Arena:
        """The run's cases in a home; filled from the files if the cache has no such entry."""
        if home not in self._arenas:
            config = self.planned.config.cache
            # Budgets are for `auto` alone.
            other = dataclasses.replace(config, home=home, device="auto", ram="auto")  # type: ignore[arg-type]
            cache = config if home == config.home else other
            ids = tuple(case.id for case in self.planned.train)
            self._arenas[home] = get_arena(
                self.planned.case_set, self.planned.config.prepare, cache, device=str(self.device), first=ids,
                files=self.planned.files,
            )  # fmt: skip
        return self._arenas[home]

    def network(self, fused: bool) -> nn.Module:
        """A copy, with the norms operated on or as MONAI has them."""
        if fused not in self._networks:
            self._networks[fused] = operated_net(self.planned)[0] if fused else build_net(self.planned)
        return copy.deepcopy(self._networks[fused])

    def build(self, kind: Kind, setting: Setting) -> Arm:
        """Raises the error of a setting that doesn't work, such as a failing compiler or too little memory."""
        with threads(int(setting["threads"])):
            components, note = self.components(setting)
            if kind == "validate":
                return self._validation(components)
            batch = first_batch(components)
            if kind == "update":
                return _update(components.step, batch, str(setting["optimizer"]))
            begin = time.perf_counter()
            compiled = setting["compile"] != "off"
            if compiled:
                step = dataclasses.replace(components.step, network=_compiled(components.step.network, setting))
                components = dataclasses.replace(components, step=step)
            trace = _trace(components.step, batch)
            components.step(*batch, 0)
            synchronize(self.device)
            once = time.perf_counter() - begin if compiled else 0.0
            once += components.program.compile_seconds
            calls = {
                "step": lambda: self._step(components, batch, setting),
                "run": lambda: self._run(components, setting),
            }

            def arm(kind: Kind) -> Arm:
                return Arm(call=calls[kind](), sibling=arm, trace=trace, once=once, note=note)

            return arm(kind)

    def components(self, setting: Setting) -> tuple[RunComponents, str]:
        """The run assembled as `train` does, but for compiling the network; and its note about recomputation."""
        planned = self.planned_for(setting)
        network = self.network(bool(setting["norm_fusion"]))
        arena = self.arena(str(setting["home"]))
        with _unwarned():
            components = compose_run(planned, arena, Clock(), network=network)
        for module in network.modules():
            # Its random draws would hide differences.
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        if setting["capture"] and components.captured is None:
            raise ValueError(f"the step can't be captured, as {components.accelerators['CUDA graph'].reason}")
        if setting["batch_program"] and not components.program.compiled:
            raise ValueError(components.program.why)
        recomputed = components.accelerators.get("recomputed activations")
        return components, recomputed.reason if recomputed else ""

    def planned_for(self, setting: Setting) -> RunPlan:
        """The plan under a setting, with nothing left to be measured and a negligible learning rate."""
        config = self.planned.config
        sample = dataclasses.replace(
            config.sample, batch_size=int(setting["batch_size"]), compile=bool(setting["batch_program"])
        )
        infer = dataclasses.replace(config.infer, batch_size=int(setting["infer_batch"]))
        planned = dataclasses.replace(self.planned, config=dataclasses.replace(config, sample=sample, infer=infer))
        return with_train(
            planned, precision=setting["precision"], channels_last=setting["channels_last"], compile=False,
            capture=bool(setting["capture"]), activations=str(setting["activations"]),
            learning_rate=_RATE, learning_rate_batch=0,
        )  # fmt: skip

    def _timed(self, body: Callable[[], object], scale: float, count: int) -> Callable[[], float]:
        """A call that sets the threads, waits for the device around `body`, and returns its scaled seconds."""

        def call() -> float:
            with threads(count):
                synchronize(self.device)
                begin = time.perf_counter()
                body()
                synchronize(self.device)
                return scale * (time.perf_counter() - begin)

        return call

    def _step(self, components: RunComponents, batch: tuple[Tensor, Tensor], setting: Setting) -> Callable[[], float]:
        repeats = self.repeats
        scale = self.batch_size / int(setting["batch_size"]) / repeats

        def body() -> None:
            for _ in range(repeats):
                components.step(*batch, 0)

        return self._timed(body, scale, int(setting["threads"]))

    def _run(self, components: RunComponents, setting: Setting) -> Callable[[], float]:
        """Steps with their batches, through the feed that a run has."""
        steps, depth, captured = self.run_steps, int(setting["ring_depth"]), components.captured
        scale = self.batch_size / int(setting["batch_size"]) / steps
        done = 0

        def replay() -> None:
            nonlocal done
            for index in range(done, done + steps):
                captured(index)  # type: ignore[misc]
            done += steps

        def feed() -> None:
            with closing(iter(Feed(components.program, last=steps, depth=depth))) as batches:
                for index, batch in enumerate(batches):
                    components.step(batch["image"], batch["label"], index)

        if captured is None:
            return self._timed(feed, scale, int(setting["threads"]))
        for _ in range(2):
            replay()  # through the warm-up and the capture
        if not captured.on:
            raise ValueError(captured.reason)
        return self._timed(replay, scale, int(setting["threads"]))

    def timed_cases(self, arena: Arena) -> tuple[int, ...]:
        """The validation cases that one timed validation goes through."""
        return arena.index(tuple(case.id for case in self.planned.validation[:_CASES]))

    def _validation(self, components: RunComponents) -> Arm:
        cases = self.timed_cases(components.arena)
        network = components.step.update.weights.eval()

        def labels() -> list[Tensor]:
            volumes = [components.arena.image(case) for case in cases]
            maps = dict(infer_labels(network, volumes, components.inference))
            return [maps[position].reshape(-1).cpu() for position in range(len(volumes))]

        joined = torch.cat(labels())
        return Arm(call=self._timed(labels, 1.0, torch.get_num_threads()), trace=(joined, torch.tensor(joined.numel())))


@contextmanager
def _unwarned() -> Iterator[None]:
    """Suppress warnings of assembling a run, such as a budget that can't be met: the arm's note has them."""
    logger = logging.getLogger("hasten.engine.autotune")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _compiled(network: nn.Module, setting: Setting) -> nn.Module:
    mode = None if setting["inductor"] == "default" else str(setting["inductor"])
    return torch.compile(network, dynamic=False, mode=mode)  # type: ignore[return-value]


def _trace(step: TrainStep, batch: tuple[Tensor, Tensor]) -> Trace:
    """Loss and gradient norm of a batch, or of its first piece."""
    image, label = (part.chunk(step.accumulate)[0] for part in batch)
    scaler = step.update.scaler
    with tensor_cores(step.device, step.precision):
        loss = step.forward(image, label)
        step.update.backward(loss)
    grads = [weight.grad for weight in step.update.weights.parameters() if weight.grad is not None]
    norm = nn.utils.get_total_norm(grads)
    if scaler is not None and scaler.is_enabled():
        norm = norm / scaler.get_scale()
    step.update.weights.zero_grad(set_to_none=True)
    return loss.detach().float().cpu(), norm.float().cpu()


def _update(step: TrainStep, batch: tuple[Tensor, Tensor], form: str) -> Arm:
    """The optimizer alone, on gradients that stay; `loop` is torch's form that goes from weight to weight."""
    optimizer = step.update.optimizer
    if form == "loop":
        if not isinstance(optimizer, torch.optim.AdamW | torch.optim.SGD):
            raise ValueError(f"{type(optimizer).__name__} has one form only")
        groups = [{key: value for key, value in group.items() if key != "fused"} for group in optimizer.param_groups]
        optimizer = type(optimizer)([{**group, "foreach": False} for group in groups], lr=_RATE)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    step.update.backward(step.forward(*batch))
    weights = [weight for weight in step.update.weights.parameters() if weight.grad is not None]
    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    moved = nn.utils.get_total_norm([now.detach() - then for now, then in zip(weights, before, strict=True)])

    def call() -> float:
        begin = time.perf_counter()
        for _ in range(5):
            optimizer.step()
        synchronize(step.device)
        return (time.perf_counter() - begin) / 5

    return Arm(call=call, trace=(moved.cpu(), moved.cpu()))
