"""From a setting back to a run's YAML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hasten.config.load import dump_run, load_run
from hasten.config.schema import RunConfig
from hasten.study.tune.setting import Change, Setting, apply_changes, changes_between

START = Setting.of(
    {
        "precision": "fp32", "channels_last": False, "compile": "off", "inductor": "default", "capture": False,
        "activations": "all", "home": "auto", "batch_program": False, "batch_size": 4, "ring_depth": 2, "threads": 2,
        "norm_fusion": True, "optimizer": "fused", "infer_batch": 4,
    }
)  # fmt: skip
PLANNED = dataclasses.replace(
    load_run(None, ("train.steps=1000", "train.validate_every=100", "train.learning_rate=0.01"))
)


def apply(changes: dict[str, Any], *overrides: str, decided: tuple[str, ...] = ()) -> RunConfig:
    return apply_changes(load_run(None, overrides), PLANNED, START, START.having(changes), decided)


def test_nothing_changes_where_nothing_won() -> None:
    config = load_run(None, ("train.precision=bf16",))
    assert apply_changes(config, PLANNED, START, START, ()) == config


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"precision": "bf16"}, {"train.precision": "bf16"}),
        ({"channels_last": True}, {"train.channels_last": True}),
        ({"compile": "whole"}, {"train.compile": True}),
        ({"capture": True}, {"train.capture": True}),
        ({"activations": "100MiB"}, {"train.activations": "100MiB"}),
        ({"home": "file"}, {"cache.home": "file"}),
        ({"batch_program": True}, {"sample.compile": True}),
        ({"infer_batch": 8}, {"infer.batch_size": 8}),
        ({"threads": 1, "norm_fusion": False}, {}),
    ],
)
def test_a_change_sets_its_field_alone(changes: dict[str, Any], fields: dict[str, Any], tmp_path: Path) -> None:
    result = apply(changes)
    assert {change.field: change.after for change in changes_between(RunConfig(), result)} == fields
    (tmp_path / "tuned.yaml").write_text(dump_run(result))
    assert load_run(tmp_path / "tuned.yaml") == result


def test_what_was_set_and_did_not_win_stays_and_what_was_open_is_settled() -> None:
    result = apply({}, "train.channels_last=true", decided=("precision", "channels_last", "compile"))
    train = result.train
    assert (train.precision, train.channels_last, train.compile) == ("fp32", True, False)


def test_a_home_leaves_no_budgets_behind() -> None:
    result = apply({"home": "ram"}, "cache.ram=1GiB")
    assert (result.cache.home, result.cache.ram, result.cache.device) == ("ram", "auto", "auto")


def test_a_larger_batch_keeps_the_patches_of_the_run_and_scales_the_rate_from_the_old_one() -> None:
    result = apply({"batch_size": 8})
    assert result.sample.batch_size == 8
    assert (result.train.learning_rate, result.train.learning_rate_batch) == (0.01, 4)
    assert (result.train.steps, result.train.validate_every) == (500, 50)


def test_a_change_reads_well() -> None:
    assert str(Change("train.compile", None, True)) == "train.compile: open -> true"
