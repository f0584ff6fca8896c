"""`train.budget`: choice of network width, number of steps and augmentation strength by the time of a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from hasten.config.decision import GIVEN, Decision
from hasten.config.networks import is_own, network_mistake
from hasten.config.plan import holds_a_case, median_shape, validation_steps, with_network
from hasten.config.size import duration_text
from hasten.engine.autotune import MEASURE_SHARE, operated_net, settle_variant, time_left
from hasten.engine.run_plan import RunPlan, augmentation_of, with_train
from hasten.engine.step import memory_format
from hasten.engine.variant import variant_of
from hasten.nets.random_state import random_state_kept
from hasten.nets.recompute.measure import seconds_of
from hasten.observe.clock import Clock
from hasten.optim.build import build_optimizer

FAST = "unet"
LEAST_STEPS = 400
"""Fewest steps of the planned network; below, `FAST` is used, which makes about three times as many (docs/engine.md).
"""
WIDTHS = (1.5, 2.0, 3.0)
"""Factors of the planned channels that are tried, one after the other."""
LEAST_WIDE_STEPS = 3500
"""Fewest steps of a wider network: those of the run that showed its gain (docs/engine.md)."""
STRONG_STEPS = 1500
"""Fewest steps with nnU-Net's ranges of rotation and zoom, which then give a higher Dice (docs/engine.md)."""
STRONG: dict[str, Any] = {"rotate_deg": (30.0, 30.0, 30.0), "scale_range": (0.7, 1.4)}
SMALL_FIRST = ((0.3, 0.5), (0.6, 0.75))
"""`sample.stages` of 3-D runs with fewer than `STRONG_STEPS` steps whose patches hold a case: they then reach a higher
Dice, and runs on crops a lower one (docs/engine.md)."""
_STEPS_SHARE = 0.85
"""Share of the remaining time for steps; the rest is for batches, compiling, validations and the report."""
_MORE = 1.25
"""Steps that are planned over those that should fit. A run with a time limit shortens its schedule, and never stretches
it."""
_WIDTH_SHARE = 0.02
"""Share of the time that measuring one width may take. The planned network and `FAST` get the share of the run's own
measurement, which then uses their results: in less time precision would stay open, and float32 has the fewest steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Network, width and steps that fit into the time."""

    network: str
    width: float
    """Factor of that network's planned channels."""
    steps: int
    """Number of steps that fit into the time, by the measured seconds of a step."""
    reason: str


def choose_scale(planned: RunPlan, clock: Clock) -> Scale | None:
    """Time a step of the planned network, and of `FAST` if too few fit, or of wider ones while enough do.

    None without a budget, and where both channels and steps are set.
    """
    if planned.config.train.budget is None or not (_open(planned, "network.channels") or _open(planned, "train.steps")):
        return None
    remaining_s, name = time_left(planned, clock), planned.config.network.name
    timed: list[str] = []

    def steps_of(candidate: RunPlan, share: float = MEASURE_SHARE) -> int:
        steps = max(1, int(_STEPS_SHARE * remaining_s / _step_seconds(candidate, share * remaining_s)))
        network = candidate.config.network
        timed.append(f"{' '.join(map(str, (network.name, *network.channels[:1])))} {steps}")
        return steps

    network, width, steps = name, 1.0, steps_of(planned)
    if steps < LEAST_STEPS:
        fast = _with_network(planned, FAST, 1.0) if _open(planned, "network.name") else None
        if fast is not None:
            network, steps = FAST, steps_of(fast)
    elif _open(planned, "network.channels"):
        for each in WIDTHS:
            wider = _with_network(planned, name, each)
            fewer = steps_of(wider, _WIDTH_SHARE) if wider is not None else 0
            if fewer < LEAST_WIDE_STEPS:
                break
            width, steps = each, fewer
    reason = f"steps that fit into {duration_text(remaining_s)}: {', '.join(timed)}"
    return Scale(network=network, width=width, steps=steps, reason=reason)


def with_scale(planned: RunPlan, scale: Scale | None) -> RunPlan:
    """The plan with what the user left open set to `scale`; None leaves it as it is."""
    if scale is None:
        return planned
    larger = _with_network(planned, scale.network, scale.width)
    assert larger is not None
    planned, decisions = larger, dict(larger.decisions)
    for name in ("network.name", "network.channels"):
        if _open(planned, name) and not is_own(planned.config.network):
            why = f"{scale.reason}; {LEAST_STEPS} are enough, {LEAST_WIDE_STEPS} for more channels"
            decisions[name] = dataclasses.replace(decisions[name], reason=why)
    if _open(planned, "train.steps"):
        steps = round(_MORE * scale.steps)
        planned = with_train(planned, steps=steps)
        decisions["train.steps"] = Decision(
            steps, f"about {scale.steps} fit into train.budget; the schedule is shortened to what does"
        )
    every = {name for name in ("validate_every", "checkpoint_every") if _open(planned, f"train.{name}")}
    value = validation_steps(planned.config.train.steps, planned.config.train.budget)
    planned = with_train(planned, **dict.fromkeys(every, value))
    for name in every:
        decisions[f"train.{name}"] = dataclasses.replace(decisions[f"train.{name}"], value=value)
    if scale.steps >= STRONG_STEPS:
        planned = _with_strong_augmentation(planned, decisions)
    else:
        planned = _with_small_patches(planned, decisions)
    return dataclasses.replace(planned, decisions=decisions)


def _open(planned: RunPlan, name: str) -> bool:
    """Whether the plan decided it, and not the user."""
    return planned.decisions[name].reason != GIVEN


def _with_network(planned: RunPlan, name: str, width: float) -> RunPlan | None:
    """The plan with this network, and every level's channels times `width`; None for one that can't be."""
    config, decisions = planned.config, planned.decisions
    if name == config.network.name and width == 1:
        return planned
    if is_own(config.network):
        return None
    if name != config.network.name:
        cuda = planned.device.type == "cuda"
        config, decisions = with_network(config, decisions, name, planned.fingerprint, cuda=cuda)
    channels = tuple(round(width * each) for each in config.network.channels)
    config = dataclasses.replace(config, network=dataclasses.replace(config.network, channels=channels))
    decisions = {**decisions, "network.channels": dataclasses.replace(decisions["network.channels"], value=channels)}
    if network_mistake(config.network, planned.case_set.spatial_dims):
        return None
    return dataclasses.replace(planned, config=config, decisions=decisions)


def _with_strong_augmentation(planned: RunPlan, decisions: dict[str, Decision]) -> RunPlan:
    """`planned` with `STRONG` for what the user left open, where the preset has these strengths."""
    config = planned.config
    if config.augment.chain or config.augment.preset != "default" or not config.sample.affine_prob:
        return planned
    changed = {name: value for name, value in STRONG.items() if _open(planned, f"sample.{name}")}
    for name, value in changed.items():
        decisions[f"sample.{name}"] = Decision(value, f"as nnU-Net's, from {STRONG_STEPS} steps on")
    config = dataclasses.replace(config, sample=dataclasses.replace(config.sample, **changed))
    augmentation = augmentation_of(config, planned.fingerprint, planned.ignore_index)
    return dataclasses.replace(planned, config=config, augmentation=augmentation)


def _with_small_patches(planned: RunPlan, decisions: dict[str, Decision]) -> RunPlan:
    """`planned` with `SMALL_FIRST` where a patch holds a 3-D case, unless the user's settings need full patches."""
    sample = planned.config.sample
    full = sample.fit_batch or planned.config.augment.chain or is_own(planned.config.network)
    whole = holds_a_case(sample.patch, median_shape(planned.fingerprint, planned.config))
    if planned.case_set.spatial_dims != 3 or full or not whole or not _open(planned, "sample.stages"):
        return planned
    reason = f"small patches at first, in larger batches: fewer than {STRONG_STEPS} steps"
    decisions["sample.stages"] = Decision(SMALL_FIRST, reason)
    config = dataclasses.replace(planned.config, sample=dataclasses.replace(sample, stages=SMALL_FIRST))
    return dataclasses.replace(planned, config=config)


def _step_seconds(planned: RunPlan, budget_s: float) -> float:
    """Forward and backward passes, and the update.

    A short run finds its variant chosen; a long one compares it with others.
    """
    # So few steps that the default variant is used, without a comparison for each width.
    brief = with_train(planned, steps=1)
    with random_state_kept(planned.device):
        network, _ = operated_net(brief)
        settled, _, passes = settle_variant(brief, network, budget_s)
    train, dims = settled.config.train, planned.case_set.spatial_dims
    network.to(memory_format=memory_format(dims, variant_of(train).channels_last))  # type: ignore[call-overload]
    optimizer = build_optimizer(network, dataclasses.replace(train, head_steps=0))
    times: list[float] = []
    for _ in range(4):
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        times.append(seconds_of(optimizer.step, planned.device))
    return passes + min(times)
