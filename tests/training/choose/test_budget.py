from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hasten
from hasten.config.augment import ROTATE_DEG
from hasten.config.load import load_run
from hasten.training.choose import budget
from hasten.training.choose.budget import (
    FAST,
    LEAST_STEPS,
    LEAST_WIDE_STEPS,
    MORE,
    SMALL_FIRST,
    STAGED_STEPS,
    STRONG_STEPS,
    Scale,
    choose_scale,
    with_scale,
)
from hasten.training.plan import RunPlan, plan_run
from tests.training.choose.test_autotune import limited_to
from tests.training.test_plan import config_of


def scaled(
    monkeypatch: pytest.MonkeyPatch,
    source: Path,
    *overrides: str,
    seconds: float = 1e-4,
    fast: float = 0.3,
    operations: float = 0.3,
) -> tuple[RunPlan, Scale]:
    """The plan with a budget of 100 s, where a step takes `seconds` for each channel of the finest level.

    fast, operations: share of the seconds, and of the operations, of the planned network that `FAST` takes.
    """

    def per_channel(planned: RunPlan, share: float) -> float:
        network = planned.config.network
        return network.channels[0] * (share if network.name == FAST else 1.0)

    monkeypatch.setattr(budget, "_step_seconds", lambda planned, _: seconds * per_channel(planned, fast))
    monkeypatch.setattr(budget, "_operations", lambda planned: per_channel(planned, operations))
    planned = plan_run(config_of(source, "train.budget=100s", *overrides))
    scale = choose_scale(planned, limited_to(100.0))
    assert scale is not None
    return with_scale(planned, scale), scale


def test_the_widest_network_that_gets_enough_steps(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan_run(config_of(source)).config.network
    finest = planned.channels[0]
    per_channel = 82.0 / (LEAST_WIDE_STEPS * 2 * finest)  # twice as wide a network gets a few more, wider ones fewer
    scaled_plan, scale = scaled(monkeypatch, source, seconds=per_channel)
    network, train = scaled_plan.config.network, scaled_plan.config.train
    assert (network.name, network.channels) == (planned.name, tuple(2 * width for width in planned.channels))
    assert scale.steps == pytest.approx(85 / 82 * LEAST_WIDE_STEPS, rel=0.05)
    assert f"{planned.name}, {finest} channels: " in scaled_plan.decisions["network.channels"].reason
    assert train.budget == 100
    assert train.steps == MORE * scale.steps
    assert train.validate_every == train.steps // 10
    assert scaled_plan.decisions["train.validate_every"].value == train.validate_every


def test_the_planned_network_where_wider_ones_get_too_few_steps(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = plan_run(config_of(source)).config.network
    per_channel = 60.0 / (1.1 * LEAST_STEPS * usual.channels[0])
    planned, scale = scaled(monkeypatch, source, seconds=per_channel)
    assert planned.config.network == usual
    assert LEAST_STEPS < scale.steps < STRONG_STEPS
    assert planned.config.sample.rotate_deg == ROTATE_DEG


@pytest.mark.parametrize("named", [False, True])
def test_a_cheaper_network_where_time_is_short(source: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    usual = plan_run(config_of(source)).config.network
    name = [f"network.name={usual.name}"] if named else []
    planned, scale = scaled(monkeypatch, source, *name, seconds=2 / usual.channels[0])
    assert scale.steps < LEAST_STEPS
    assert planned.config.network.name == (usual.name if named else "unet")
    assert planned.decisions["network.name"].value == planned.config.network.name
    if not named:
        alone = plan_run(config_of(source, "network.name=unet"))
        assert planned.config.network == alone.config.network
        assert planned.decisions.keys() == alone.decisions.keys()


@pytest.mark.parametrize(("fast", "operations"), [(1.1, 0.6), (0.7, 0.3), (0.7, 1.2)])
def test_a_network_that_makes_too_few_steps_more_is_not_taken(
    source: Path, monkeypatch: pytest.MonkeyPatch, fast: float, operations: float
) -> None:
    """Slower steps, though there are fewer operations in them; hardly faster ones."""
    usual = plan_run(config_of(source)).config.network
    planned, scale = scaled(monkeypatch, source, seconds=0.6 / usual.channels[0], fast=fast, operations=operations)
    assert planned.config.network == usual
    assert scale.steps < LEAST_STEPS
    assert f"{usual.name}, {usual.channels[0]} channels: {scale.steps} steps of 0.6 s" in scale.reason


def test_a_network_is_not_timed_where_that_would_take_too_long(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 s experiments get 10: a step of 10 s is estimated from the other network's."""
    usual = plan_run(config_of(source)).config.network
    planned, scale = scaled(monkeypatch, source, seconds=10 / usual.channels[0])
    assert planned.config.network.name == FAST
    assert f"{usual.name}, {usual.channels[0]} channels: about 8 steps" in scale.reason


def test_what_is_set_is_kept(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("network.channels=[4, 8, 16]", "train.validate_every=11", "sample.rotate_deg=[5, 5, 5]")
    planned, _ = scaled(monkeypatch, source, *given)
    assert planned.config.network.channels == (4, 8, 16)
    assert planned.config.train.validate_every == 11
    assert planned.config.train.steps > STRONG_STEPS
    assert planned.config.sample.rotate_deg == (5.0, 5.0, 5.0)


def test_long_runs_turn_and_zoom_as_nnunet_does(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = scaled(monkeypatch, source)
    assert planned.config.sample.rotate_deg == (30.0, 30.0, 30.0)
    assert planned.config.sample.scale_range == (0.7, 1.4)
    assert "zoom=(0.7, 1.4)" in repr(planned.augmentation)
    other, _ = scaled(monkeypatch, source, "augment.preset=nnunet")
    assert other.config.sample.rotate_deg is None
    assert "sample.rotate_deg" not in other.decisions


def test_short_runs_begin_with_small_patches(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = 85.0 / (1.1 * LEAST_STEPS * plan_run(config_of(source)).config.network.channels[0])
    planned, scale = scaled(monkeypatch, source, seconds=few)
    assert scale.steps < STRONG_STEPS
    assert planned.config.sample.stages == planned.decisions["sample.stages"].value == SMALL_FIRST
    for setting in ("sample.stages=[]", "sample.fit_batch=true", "sample.patch=[16,16,16]"):
        planned, _ = scaled(monkeypatch, source, setting, seconds=few)
        assert planned.config.sample.stages == ()
    long, scale = scaled(monkeypatch, source)
    assert scale.steps > STRONG_STEPS
    assert long.config.sample.stages == ()
    brief, scale = scaled(monkeypatch, source, seconds=12 * few)
    assert scale.steps < STAGED_STEPS
    assert brief.config.sample.stages == ()


def test_a_step_is_timed_on_the_network_itself(source: Path) -> None:
    planned = plan_run(config_of(source, "train.budget=10s", "network.channels=[4, 8]", "sample.patch=[8, 16, 16]"))
    state = torch.random.get_rng_state()
    assert budget._step_seconds(planned, limited_to(1.0)) > 0
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.budget=soon",), "train.budget: 'soon' is no duration; write a number with a unit, such as 90s"),
        (("train.budget=0min",), "train.budget: '0min' is no duration"),
        (("train.budget=0",), "train.budget: must be above 0"),
        (("train.max_seconds=90",), "train.max_seconds: no such field .*; it is train.budget now"),
        (("sample.compile=null",), "sample.compile: no such field .*; it was removed: leave it out"),
    ],
)
def test_budgets_that_are_refused(source: Path, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_run(config_of(source, *overrides))


def test_a_run_with_a_budget_goes_on_as_it_was_planned(source: Path, tmp_path: Path) -> None:
    small = ("sample.patch=[8, 16, 16]", "network.strides=[[2, 2, 2]]", "train.precision=fp32",
             "train.channels_last=false", "train.compile=false", "train.steps=4", "train.validate_every=4")  # fmt: skip
    out = tmp_path / "run"
    hasten.train(config_of(source, "train.budget=10min", *small), out)
    before = load_run(out / "run.yaml")
    assert before.train.budget == 600
    longer = load_run(out / "run.yaml", ["train.steps=6", "train.budget=900"])
    again = hasten.train(longer, out, resume=True)
    assert again["steps"] == 6
    assert load_run(out / "run.yaml").train.budget == 900
    assert load_run(out / "run.yaml").network.channels == before.network.channels
