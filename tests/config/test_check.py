from __future__ import annotations

import re

import pytest

from hasten.config.check import check_run
from hasten.config.load import load_run
from hasten.config.schema import RunConfig


def test_the_defaults_are_in_range() -> None:
    assert check_run(RunConfig()) == []


@pytest.mark.parametrize(
    "override",
    [
        "data.split.fraction=0",
        "data.split.fraction=1",
        "data.split.fraction=.nan",
        "data.split.num_folds=1",
        "data.split.fold=-1",
        "data.split.seed=-1",
        "prepare.orientation=RAX",
        "prepare.orientation=RLS",
        "prepare.orientation=RA",
        "prepare.spacing=[0, 1, 1]",
        "prepare.spacing=[1, 1, .inf]",
        "data.ignore=0",
        "data.ignore=-1",
        "prepare.window=[5, 5]",
        "prepare.window=[.nan, 5]",
        "prepare.num_threads=0",
        "cache.max_points=0",
        "sample.patch=[8, 0, 8]",
        "sample.batch_size=0",
        "sample.foreground_prob=1.5",
        "sample.flip_prob=[0, 0, -0.1]",
        "sample.noise_prob=.nan",
        "sample.rotate_deg=[0, 0, 181]",
        "prepare.spacing=[1, 1, 1e5]",
        "observe.monitor_every=1e12",
        "loss.gamma=1e300",
        "sample.scale_range=[0, 1]",
        "sample.scale_range=[1e-9, 1]",
        "sample.scale_range=[1.2, 0.8]",
        "network.channels=[8]",
        "network.channels=[8, 0]",
        "network.strides=[[1, 0, 1]]",
        "network.strides=[]",
        "network.dropout=1",
        "network.weights=https://host/model.pt",
        "network.num_res_units=-1",
        "data.split.train_range=[0.5, 0.5]",
        "data.split.train_range=[0.5, 1.1]",
        "train.lr_scale={a: 0}",
        "loss.name=dicee",
        "loss.digest=abc",
        "train.lr_scale={a: 1, b: -0.5}",
        "train.lr_scale={a: .inf}",
        "train.lr_scale={a: .nan}",
        "train.seed=-1",
        "train.device=gpu",
        "train.steps=0",
        "train.learning_rate=0",
        "train.learning_rate=.inf",
        "train.weight_decay=-1",
        "train.warmup_fraction=1",
        "train.clip_norm=-1",
        "train.ema=1",
        "train.validate_every=0",
        "train.checkpoint_every=0",
        "train.target=1.1",
        "train.target=0",
        "train.max_seconds=0",
        "infer.patch=[0, 1, 1]",
        "infer.overlap=1",
        "infer.whole_up_to=-1",
        "infer.batch_size=0",
    ],
)
def test_a_value_out_of_range_is_reported_once_under_its_own_name(override: str) -> None:
    with pytest.raises(ValueError) as raised:
        load_run(None, [override])
    message = str(raised.value)
    assert message.count("\n") == 0
    name = re.escape(override.partition("=")[0])
    assert re.match(rf"override '{re.escape(override)}': {name}(\[\d\]|\.\w)*: ", message)


@pytest.mark.parametrize(
    "override",
    [
        "prepare.spacing=[0, 0, 0]",
        "prepare.orientation=LPI",
        "prepare.orientation=SAR",
        "sample.scale_range=[1, 1]",
        "sample.rotate_deg=[180, 0, 0]",
        "data.split.fold=14",
        "train.device=cuda:3",
        "train.target=1",
        "train.clip_norm=0",
        "infer.overlap=0",
    ],
)
def test_the_ends_of_a_range_pass(override: str) -> None:
    load_run(None, [override])


def test_fields_that_depend_on_each_other() -> None:
    with pytest.raises(ValueError, match=r"network\.strides: must be one fewer than the 3 channels"):
        load_run(None, ["network.channels=[8, 16, 32]", "network.strides=[[2, 2, 2]]"])
    with pytest.raises(ValueError, match=r"sample\.patch: must be \[1, H, W\]"):
        load_run(None, ["data.spatial_dims=2", "sample.patch=[8, 64, 64]"])
    with pytest.raises(ValueError, match=r"must name each case once \(given b\)"):
        load_run(None, ["data.split.by=list", "data.split.validation=[a, b, b]"])
    with pytest.raises(ValueError, match=r"data\.classes: must be a list of names, .* as \{nucleus: 255\} \(given"):
        load_run(None, ["data.classes={nucleus:255}"])
    with pytest.raises(ValueError, match=r"data\.split\.validation: is used only with .* \(given by: fold\)"):
        load_run(None, ["data.split.by=fold", "data.split.validation=[a]"])


def test_a_batch_has_as_many_pieces_as_samples_at_most() -> None:
    assert load_run(None, ["train.accumulate=4", "sample.batch_size=4"]).train.accumulate == 4
    with pytest.raises(ValueError, match=r"train.accumulate: .*sample.batch_size, 4 \(given 5\)"):
        load_run(None, ["train.accumulate=5", "sample.batch_size=4"])
