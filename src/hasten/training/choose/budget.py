"""A run with a time limit: network, steps and augmentation by what fits into its time."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from hasten.config.augment import ROTATE_DEG
from hasten.config.decision import Decision
from hasten.config.networks import is_own, network_mistake
from hasten.config.plan import holds_a_case, median_shape, validation_steps, with_network
from hasten.config.schema import RunConfig
from hasten.config.settled import with_settings
from hasten.devices import kind_of
from hasten.kernels.use import triton_as
from hasten.nets.random_state import all_random_states_kept, random_state_kept
from hasten.observe.clock import Clock
from hasten.observe.notebook import Plan
from hasten.observe.values import duration
from hasten.optim.build import build_optimizer
from hasten.runtime.allocator import kept_memory
from hasten.runtime.device import current_device, pick_device, seconds_of
from hasten.runtime.precision import to_memory_format
from hasten.training.choose.autotune import STEPS_SHARE, choose_variant, operated_net
from hasten.training.choose.experiments import Experiments
from hasten.training.plan import RunPlan, augmentation_of, network_size, plan_run, plan_to_dict, with_train

log = logging.getLogger(__name__)

FAST = "unet"
LEAST_STEPS = 200
"""Fewest steps of the planned network; below, `FAST` may be used (docs/any-data.md)."""
FASTER = 2.0
"""Times the planned network's steps that `FAST` has to make, to be used: in as many it reaches a lower Dice."""
WIDTHS = (1.5, 2.0, 3.0)
"""Factors of the planned channels that are tried, one after the other."""
LEAST_WIDE_STEPS = 3500
"""Fewest steps of a wider network: those of the run that showed its gain (docs/engine.md)."""
STRONG_STEPS = 1500
"""Fewest steps with nnU-Net's ranges of rotation and zoom, which then give a higher Dice (docs/engine.md)."""
STRONG_ROTATION, STRONG_ZOOM = 2.0, (0.7, 1.4)
"""nnU-Net's ranges: times the planned angles, and the zoom."""
SMALL_FIRST = ((0.3, 0.5), (0.6, 0.75))
"""`sample.stages` of 3-D runs of `STAGED_STEPS` to `STRONG_STEPS` steps whose patches hold a case: they then reach a
higher Dice, and runs on crops a lower one (docs/engine.md)."""
STAGED_STEPS = 200
"""Fewest steps with these: shares of fewer, where the estimate is off, would leave none on full patches."""
MORE = 4
"""Times the steps that should fit, which are planned: the time ends the run, also where steps become faster."""
_PASSES = 7
"""Passes, and what a network's building takes in passes, of timing its step."""
_OFF = 2.0
"""Factor by which steps may be off that are predicted from another network's by the numbers of operations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Network, width and steps that fit into the time."""

    network: str
    width: float
    """Factor of that network's planned channels."""
    steps: int
    """Number of steps that fit into the time, by the measured seconds of a step."""
    reason: str


def make_plan(config: RunConfig) -> dict[str, Any]:
    """The plan for `config`: fingerprint, each decision with its reason, and how large the network is.

    Nothing is trained or written. With a time limit, steps of the network are timed.

    Example:
        >>> plan = hasten.make_plan(hasten.load_run(overrides=["data.source=path/to/dataset"]))
    """
    device, fused = pick_device(config.train.device), config.train.fused_kernels
    with current_device(device), all_random_states_kept(device), triton_as(fused):
        planned = plan_run(config, device=device)
        planned = with_scale(planned, choose_scale(planned, Experiments(Clock(), planned.config.train.budget)))
        size = network_size(planned)
    for warning in planned.warnings:
        log.warning("%s", warning)
    return Plan(plan_to_dict(planned) | {"network": size})


def choose_scale(planned: RunPlan, experiments: Experiments) -> Scale | None:
    """The network that makes the most of the time: the planned one, `FAST` if too few of its steps fit, or a wider one.

    The network of the fewest operations is timed first. What that predicts of the others decides which of them are
    worth timing, within what experiments may take. None without a time limit, and where steps are set: then the run has
    these, as long as there is time.
    """
    if planned.config.train.budget is None or not planned.decisions["train.steps"].open:
        return None
    experiments.tell("timing     networks, for what fits into the time")
    estimate, why = _Estimate(experiments), ""
    fast = _with_network(planned, FAST, 1.0) if planned.decisions["network.name"].open else None
    if fast is None or fast is planned or _operations(fast) >= _operations(planned):
        fast = None
    chosen, width, steps = planned, 1.0, 0
    if fast is not None:
        fast_steps = estimate.timed(fast)
        steps = estimate.of(planned, enough=min(LEAST_STEPS, fast_steps / FASTER))
        if steps < LEAST_STEPS and fast_steps >= FASTER * steps:
            chosen, steps, why = fast, fast_steps, f"; the planned network should make {LEAST_STEPS}"
        elif steps < LEAST_STEPS:
            why = f"; {FAST} is used where it makes {FASTER:g} times the steps"
    else:
        steps = estimate.timed(planned)
    if chosen is planned and planned.decisions["network.channels"].open:
        for each in WIDTHS:
            wider = _with_network(planned, planned.config.network.name, each)
            fewer = estimate.of(wider, enough=LEAST_WIDE_STEPS) if wider is not None else 0
            if fewer < LEAST_WIDE_STEPS:
                why += f"; more channels should make {LEAST_WIDE_STEPS}"
                break
            width, steps = each, fewer
    return Scale(network=chosen.config.network.name, width=width, steps=steps, reason=f"{estimate.text()}{why}")


class _Estimate:
    """How many steps of each network fit into the time."""

    def __init__(self, experiments: Experiments) -> None:
        self.experiments, self.run_s = experiments, experiments.run_s
        self._seconds: list[tuple[float, float]] = []
        """Operations of a forward pass and seconds of a step, of the networks that were timed."""
        self._texts: list[str] = []

    def timed(self, planned: RunPlan) -> int:
        """Steps that fit, by the seconds of one, which is timed."""
        seconds = _step_seconds(planned, self.experiments)
        self._seconds.append((_operations(planned), seconds))
        return self._steps(planned, seconds, "")

    def of(self, planned: RunPlan, *, enough: float) -> int:
        """Steps that fit, by its operations, or timed if that may show `enough` of them and there is time for it."""
        operations, seconds = self._seconds[-1]
        predicted = seconds * _operations(planned) / operations
        near = STEPS_SHARE * self.run_s / predicted > enough / _OFF
        if near and not self.experiments.refusal(_PASSES * predicted, self.run_s):
            return self.timed(planned)
        return self._steps(planned, predicted, "about ")

    def _steps(self, planned: RunPlan, seconds: float, about: str) -> int:
        steps, network = max(1, int(STEPS_SHARE * self.run_s / seconds)), planned.config.network
        width = f", {network.channels[0]} channels" if network.channels else ""
        self._texts.append(f"{network.name}{width}: {about}{steps} steps of {seconds:.2g} s")
        return steps

    def text(self) -> str:
        """What fits, for the plan: `unet, 16 channels: 97 steps of 0.21 s fit into 40 s`."""
        first, *others = self._texts
        return "; ".join([f"{first} fit into {duration(self.run_s)}", *others])


def _operations(planned: RunPlan) -> float:
    """Operations of a forward pass; 1 where they can't be counted, as of a network of the user's own."""
    if is_own(planned.config.network):
        return 1.0
    return network_size(planned)["forward_flops"] or 1.0


def with_scale(planned: RunPlan, scale: Scale | None) -> RunPlan:
    """The plan with what the user left open set to `scale`; None leaves it as it is."""
    if scale is None:
        return planned
    larger = _with_network(planned, scale.network, scale.width)
    assert larger is not None
    planned, decisions = larger, dict(larger.decisions)
    for name in ("network.name", "network.channels"):
        if planned.decisions[name].open and not is_own(planned.config.network):
            decisions[name] = dataclasses.replace(decisions[name], reason=scale.reason)
    steps = MORE * scale.steps
    decisions["train.steps"] = Decision(
        steps,
        f"about {scale.steps} fit into the time, which alone ends the run; the schedule is shortened to it",
        "measured",
    )
    every = validation_steps(steps, limited=True)
    settled: dict[str, int] = {"steps": steps}
    for name in ("validate_every", "checkpoint_every"):
        if planned.decisions[f"train.{name}"].open:
            settled[name] = every
            decisions[f"train.{name}"] = Decision(every, f"at most {math.ceil(steps / every)} in the run, for its time")
    planned = with_train(planned, **settled)
    if scale.steps >= STRONG_STEPS:
        planned = _with_strong_augmentation(planned, decisions)
    elif scale.steps >= STAGED_STEPS:
        planned = _with_small_patches(planned, decisions)
    return dataclasses.replace(planned, decisions=decisions)


def _with_network(planned: RunPlan, name: str, width: float) -> RunPlan | None:
    """The plan with this network, and every level's channels times `width`; None for one that can't be."""
    config, decisions = planned.config, planned.decisions
    if name == config.network.name and width == 1:
        return planned
    if is_own(config.network):
        return None
    if name != config.network.name:
        accelerator = kind_of(planned.device).accelerator
        config, decisions = with_network(config, decisions, name, planned.fingerprint, accelerator=accelerator)
    channels = tuple(round(width * each) for each in config.network.channels)
    config = with_settings(config, "network", channels=channels)
    decisions = {**decisions, "network.channels": dataclasses.replace(decisions["network.channels"], value=channels)}
    if network_mistake(config.network, planned.case_set.spatial_dims):
        return None
    return dataclasses.replace(planned, config=config, decisions=decisions)


def _with_strong_augmentation(planned: RunPlan, decisions: dict[str, Decision]) -> RunPlan:
    """`planned` with nnU-Net's ranges for what the user left open, where the preset has these strengths."""
    config = planned.config
    if config.augment.chain or config.augment.preset != "default" or not config.sample.affine_prob:
        return planned
    strong: dict[str, Any] = {
        "rotate_deg": tuple(STRONG_ROTATION * angle for angle in config.sample.rotate_deg or ROTATE_DEG),
        "scale_range": STRONG_ZOOM,
    }
    changed = {name: value for name, value in strong.items() if planned.decisions[f"sample.{name}"].open}
    for name, value in changed.items():
        decisions[f"sample.{name}"] = Decision(value, f"as nnU-Net's, from {STRONG_STEPS} steps on")
    config = with_settings(config, "sample", **changed)
    augmentation = augmentation_of(config, planned.fingerprint, planned.ignore_index)
    return dataclasses.replace(planned, config=config, augmentation=augmentation)


def _with_small_patches(planned: RunPlan, decisions: dict[str, Decision]) -> RunPlan:
    """`planned` with `SMALL_FIRST` where a patch holds a 3-D case, unless the user's settings need full patches."""
    sample = planned.config.sample
    full = sample.fit_batch or planned.config.augment.chain or is_own(planned.config.network)
    whole = holds_a_case(sample.patch, median_shape(planned.fingerprint, planned.config))
    if planned.case_set.spatial_dims != 3 or full or not whole or not planned.decisions["sample.stages"].open:
        return planned
    reason = f"small patches at first, in larger batches: fewer than {STRONG_STEPS} steps"
    decisions["sample.stages"] = Decision(SMALL_FIRST, reason)
    return dataclasses.replace(planned, config=with_settings(planned.config, "sample", stages=SMALL_FIRST))


def _step_seconds(planned: RunPlan, experiments: Experiments) -> float:
    """Forward and backward passes, and the update.

    A short run finds its variant chosen; a long one compares it with others.
    """
    # So few steps that the default variant is used, without a comparison for each width.
    brief = with_train(planned, steps=1)
    # Freed memory is kept as in the run: new pages for every pass would nearly double its time.
    with experiments.running(), random_state_kept(planned.device), kept_memory():
        network, _ = operated_net(brief)
        variant, passes, _ = choose_variant(brief, network, experiments)
        to_memory_format(network, planned.case_set.spatial_dims, variant.channels_last)
        optimizer = build_optimizer(network, brief.config.train)
        times: list[float] = []
        for _ in range(3):
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.ones_like(parameter)
            times.append(seconds_of(optimizer.step, planned.device))
    return passes + min(times)
