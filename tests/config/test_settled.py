import dataclasses

import pytest

from hasten.config.load import dump_run, from_dict, to_dict
from hasten.config.schema import InferConfig, NetworkConfig, RunConfig, SampleConfig, TrainConfig
from hasten.config.settled import planned_run, undecided

FULL = RunConfig(
    sample=SampleConfig(patch=(8, 16, 16), batch_size=3, stages=((0.5, 0.5),)),
    network=NetworkConfig(name="unet", channels=(4, 8), strides=((2, 2, 2),)),
    train=TrainConfig(steps=20, learning_rate=1e-3, validate_every=5, checkpoint_every=10, seed=7),
    infer=InferConfig(patch=(8, 16, 32)),
)


def test_the_same_settings_in_the_same_order_and_bytes() -> None:
    planned = planned_run(FULL)
    assert list(to_dict(planned).items()) == list(to_dict(FULL).items())
    assert dump_run(planned) == dump_run(FULL)
    assert planned_run(from_dict(to_dict(planned), where="here")) == planned


def test_a_field_that_is_open_is_named() -> None:
    config = dataclasses.replace(FULL, train=dataclasses.replace(FULL.train, steps=None))
    assert undecided(config) == ["train.steps"]
    with pytest.raises(ValueError, match=r"^here: leaves train\.steps open"):
        planned_run(config, "here")


def test_the_fields_that_data_decide() -> None:
    assert undecided(FULL) == []
    assert set(undecided(RunConfig())) == {
        "sample.patch", "sample.batch_size", "sample.stages", "network.name", "network.channels", "network.strides",
        "train.steps", "train.learning_rate", "train.validate_every", "train.checkpoint_every", "infer.patch",
    }  # fmt: skip


def test_a_setting_of_another_version_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    tree = to_dict(RunConfig())
    tree["train"]["lookahead"] = 6
    assert from_dict(tree, where="model.pt") == RunConfig()
    assert "model.pt: train.lookahead=6" in caplog.text
    assert tree["train"]["lookahead"] == 6
