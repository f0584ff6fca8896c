"""`train.budget`: how wide a network, how many steps and how strong an augmentation the time of a run allows."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch

from hasten.config.network import is_own
from hasten.config.networks import network_mistake
from hasten.config.plan import GIVEN, Decision, validation_steps
from hasten.config.size import duration_text
from hasten.engine.autotune import operated_net, settle_variant, time_left
from hasten.engine.job import Planned, augmentation_of, with_train
from hasten.engine.measure import variant_of
from hasten.engine.step import memory_format
from hasten.nets.random_state import random_state_kept
from hasten.observe.clock import Clock
from hasten.optim.build import build_optimizer

WIDTHS = (1.0, 1.5, 2.0, 3.0)
"""Factors of the planned channels that are tried, one after the other."""
LEAST_STEPS = 3500
"""A wider network is taken only where it gets as many steps: those of the run that showed its gain (docs/engine.md)."""
STRONG_STEPS = 8000
"""From so many steps on, rotations and zooms are as wide as nnU-Net's: those of the run that showed their gain."""
STRONG: dict[str, Any] = {"rotate_deg": (30.0, 30.0, 30.0), "scale_range": (0.7, 1.4)}
_STEPS_SHARE = 0.85
"""Of the time that is left, what steps take; the rest is for batches, compiling, validations and the report."""
_MORE = 1.25
"""Steps that are planned over those that should fit. A run with a time limit shortens its schedule, and never stretches
it."""
_MEASURE_SHARE = 0.02
"""Of the time, what measuring one width may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What the time allows."""

    width: float
    """Factor of the planned channels."""
    steps: int
    """That fit into the time, by the measured seconds of a step."""
    reason: str


def choose_scale(planned: Planned, clock: Clock) -> Scale | None:
    """Time a step of the planned network, and of wider ones while they get `LEAST_STEPS`.

    None without a budget, and where both channels and steps are set.
    """
    if planned.config.train.budget is None or not (_open(planned, "network.channels") or _open(planned, "train.steps")):
        return None
    left = time_left(planned, clock)
    chosen: Scale | None = None
    seen: list[str] = []
    for width in WIDTHS if _open(planned, "network.channels") else WIDTHS[:1]:
        wider = _with_width(planned, width)
        if wider is None:
            continue
        steps = max(1, int(_STEPS_SHARE * left / _step_seconds(wider, _MEASURE_SHARE * left)))
        seen.append(f"{wider.config.network.channels[0]} channels {steps}" if wider.config.network.channels else "")
        if chosen is not None and steps < LEAST_STEPS:
            break
        chosen = Scale(width=width, steps=steps, reason="")
    assert chosen is not None
    told = f"steps that fit into {duration_text(left)}: {', '.join(seen)}" if all(seen) else ""
    return dataclasses.replace(chosen, reason=told)


def with_scale(planned: Planned, scale: Scale) -> Planned:
    """The plan with what the user left open set to `scale`."""
    wider = _with_width(planned, scale.width)
    assert wider is not None
    planned, decisions = wider, dict(wider.decisions)
    if _open(planned, "network.channels") and not is_own(planned.config.network):
        why = f"the widest that gets {LEAST_STEPS} steps" if scale.width > 1 else f"wider ones need {LEAST_STEPS} steps"
        decisions["network.channels"] = Decision(planned.config.network.channels, f"{scale.reason}; {why}")
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
    return dataclasses.replace(planned, decisions=decisions)


def _open(planned: Planned, name: str) -> bool:
    """Whether the plan decided it, and not the user."""
    return planned.decisions[name].reason != GIVEN


def _with_width(planned: Planned, width: float) -> Planned | None:
    """The plan with every level's channels times `width`; None for a network that can't be."""
    if width == 1:
        return planned
    network = planned.config.network
    if is_own(network):
        return None
    wider = dataclasses.replace(network, channels=tuple(round(width * each) for each in network.channels))
    if network_mistake(wider, planned.case_set.spatial_dims):
        return None
    return dataclasses.replace(planned, config=dataclasses.replace(planned.config, network=wider))


def _with_strong_augmentation(planned: Planned, decisions: dict[str, Decision]) -> Planned:
    """With `STRONG` for what the user left open, where the preset has these strengths."""
    config = planned.config
    if config.augment.chain or config.augment.preset != "default" or not config.sample.affine_prob:
        return planned
    changed = {name: value for name, value in STRONG.items() if _open(planned, f"sample.{name}")}
    for name, value in changed.items():
        decisions[f"sample.{name}"] = Decision(value, f"as nnU-Net's, from {STRONG_STEPS} steps on")
    config = dataclasses.replace(config, sample=dataclasses.replace(config.sample, **changed))
    augmentation = augmentation_of(config, planned.fingerprint, planned.ignore_index)
    return dataclasses.replace(planned, config=config, augmentation=augmentation)


def _step_seconds(planned: Planned, budget_s: float) -> float:
    """Forward and backward passes, as the run will measure them (and find them measured), and the update."""
    # So few steps that a GPU takes its usual variant, and is not compared with others for each width.
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
        _wait(planned.device)
        begin = time.perf_counter()
        optimizer.step()
        _wait(planned.device)
        times.append(time.perf_counter() - begin)
    return passes + min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
