"""Values out of range, the ends of ranges, and fields that depend on each other."""

from __future__ import annotations

import re

import pytest

from hasten.config.check import check_run
from hasten.config.load import load_run
from hasten.config.schema import RunConfig

OUT_OF_RANGE = """
data.split.fraction=0 data.split.fraction=.nan data.split.train_range=[0.5,0.5] data.split.train_range=[0.5,1.1]
prepare.orientation=RAX prepare.orientation=RLS prepare.orientation=RA prepare.orientation=ras
prepare.orientation=RASR prepare.spacing=[0,1,1] prepare.spacing=[1,1,.inf] prepare.spacing=[1,1,1e5]
prepare.window=[5,5] prepare.window=[.nan,5] prepare.num_threads=0 cache.max_points=0 cache.ram=8 cache.dir=s3://bucket/cache
sample.patch=[8,0,8] sample.batch_size=0 sample.foreground_prob=1.5 sample.flip_prob=[0,0,-0.1] sample.noise_prob=.nan
sample.rotate_deg=[0,0,181] sample.scale_range=[0,1] sample.scale_range=[1e-9,1] sample.scale_range=[1.2,0.8]
observe.monitor_every=1e12 loss.gamma=1e300 loss.name=dicee loss.digest=abc network.channels=[8] network.channels=[8,0]
network.strides=[[1,0,1]] network.dropout=1 network.num_res_units=-1 train.lr_scale={a:0} train.lr_scale={a:.nan}
train.seed=-1 train.device=gpu train.steps=0 train.learning_rate=0 train.learning_rate=.inf
train.weight_decay=-1 train.warmup_fraction=1 train.clip_norm=-1 train.ema=1 train.validate_every=0
train.checkpoint_every=0 train.target=1.1 train.target=0 train.budget=0 train.activations=8
train.budget=1h30 infer.patch=[0,1,1] infer.overlap=1 infer.batch_size=0 infer.flip_axes=[3]
"""
IN_RANGE = """
prepare.spacing=[0,0,0] prepare.orientation=LPI prepare.orientation=SAR sample.scale_range=[1,1]
sample.rotate_deg=[180,0,0] data.split.fold=14 train.device=cuda:3 train.target=1 train.clip_norm=0 infer.overlap=0
"""


def test_the_defaults_are_in_range() -> None:
    assert check_run(RunConfig()) == []


@pytest.mark.parametrize("override", OUT_OF_RANGE.split())
def test_a_value_out_of_range_is_reported_once_under_its_own_name(override: str) -> None:
    given = override.replace("{a:", "{a: ")
    with pytest.raises(ValueError) as raised:
        load_run(None, [given])
    message = str(raised.value)
    assert message.count("\n") == 0
    name = re.escape(given.partition("=")[0])
    assert re.match(rf"override '{re.escape(given)}': {name}(\[\d\]|\.\w)*: ", message)


@pytest.mark.parametrize("override", IN_RANGE.split())
def test_the_ends_of_a_range_pass(override: str) -> None:
    load_run(None, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["network.channels=[8, 16, 32]", "network.strides=[[2, 2, 2]]"], "one fewer than the 3 channels"),
        (["data.classes={nucleus:255}"], r"data\.classes: must be a list of names, .* as \{nucleus: 255\} \(given"),
        (["data.split.by=fold", "data.split.validation=[a]"], r"validation: is used only with .* \(given by: fold\)"),
        (["train.accumulate=5", "sample.batch_size=4"], r"train.accumulate: .*sample.batch_size, 4 \(given 5\)"),
    ],
)
def test_fields_that_depend_on_each_other(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(None, overrides)
