from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hasten.config.load import dump_run, load_run, with_absolute_paths
from hasten.config.schema import (
    DataConfig,
    NetworkConfig,
    PrepareConfig,
    RunConfig,
    SampleConfig,
    SplitConfig,
    TrainConfig,
)


def test_dump_loads_back_equal(tmp_path: Path) -> None:
    config = RunConfig(
        data=DataConfig(
            source="/näme: #1", classes={"a b": 255}, split=SplitConfig(by="list", validation=("1e3", "no"))
        ),
        prepare=PrepareConfig(orientation=None, spacing=(1e-9, 1.0, 1e4), window=((-1e6, 0.1), None)),
        sample=SampleConfig(patch=(8, 9, 10), flip_prob=(0.0, 1.0, 1 / 3)),
        network=NetworkConfig(name="net.py:Net", args={"width": [1, 2.5, None, "x"]}),
        train=TrainConfig(steps=10**9, learning_rate=1e-9, device="cuda:1", budget=0.5),
    )
    path = tmp_path / "run.yaml"
    path.write_text(dump_run(config), encoding="utf-8")
    assert dump_run(load_run(path)) == dump_run(with_absolute_paths(config, lambda key: tmp_path))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_defaults_without_file_and_from_an_empty_file(tmp_path: Path) -> None:
    assert load_run(None) == RunConfig()
    assert load_run(write(tmp_path, "# nothing\n")) == RunConfig()
    assert load_run(write(tmp_path, "train:\n  # steps: 5\ndata:\n  split:\n")) == RunConfig()


def test_values_are_coerced(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {learning_rate: 1e-3, clip_norm: 1}\nsample: {patch: [8, 9, 10]}\n")
    config = load_run(path, ["train.weight_decay=1e-5", "sample.flip_prob=[0, 0, 0.5]", "prepare.orientation=null"])
    assert config.train.learning_rate == 1e-3
    assert config.train.weight_decay == 1e-5
    assert isinstance(config.train.clip_norm, float)
    assert config.sample.patch == (8, 9, 10)
    assert config.sample.flip_prob == (0.0, 0.0, 0.5)
    assert config.prepare.orientation is None


def test_overrides_win_over_the_file_and_later_over_earlier(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {steps: 5, seed: 3}\n")
    assert load_run(path, ["train.steps=6", "train.steps=7"]).train == dataclasses.replace(
        RunConfig().train, steps=7, seed=3
    )


@pytest.mark.parametrize(
    ("overrides", "window"),
    [
        (("sample.patch=[8, 8, 8]",), None),
        (("sample.patch=[8, 8, 8]", "infer.patch=[16, 16, 16]"), (16, 16, 16)),
        (("sample.patch=[16, 16, 16]",), (16, 16, 16)),
        (("train.steps=3",), (16, 16, 16)),
    ],
)
def test_a_window_that_was_the_training_patch_follows_it(
    tmp_path: Path, overrides: tuple[str, ...], window: tuple[int, ...] | None
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("sample: {patch: [16, 16, 16]}\ninfer: {patch: [16, 16, 16]}\n")
    assert load_run(path, overrides).infer.patch == window


def test_relative_source_is_taken_from_the_yaml_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write(tmp_path, "data: {source: images}\ncache: {dir: warm}\nnetwork: {weights: some.pt}\n")
    config = load_run(path)
    assert config.data.source == str(tmp_path / "images")
    assert config.cache.dir == str(tmp_path / "warm")
    assert config.network.weights == str(tmp_path / "some.pt")
    assert load_run(path, ["network.weights=some.pt"]).network.weights == str(tmp_path / "elsewhere/some.pt")
    assert load_run(Path("../run.yaml")).data.source == str(tmp_path / "elsewhere/../images")
    assert load_run(path, ["data.source=mine"]).data.source == str(tmp_path / "elsewhere/mine")
    assert load_run(path, ["data={source: mine}"]).data.source == str(tmp_path / "elsewhere/mine")
    assert load_run(path, ["data.source=/there"]).data.source == "/there"


def test_one_error_lists_every_mistake_with_its_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
train:
  stps: 3
  learning_rate: 0.1
  seed: yes
  steps: 5
  steps: 6
sample:
  patch: [1, 2]
  flip_prob:
    - 0
    - 0
    - often
network: {name: unett}
steps: 7
loss: 3
""",
    )
    with pytest.raises(ValueError) as raised:
        load_run(path, ["train.ema", "loss.batch=1"])
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{path}: 9 mistakes"
    assert sorted(line.strip() for line in lines[1:]) == sorted(
        [
            f"{path}:2: train.stps: no such field (given 3); did you mean train.steps?",
            f"{path}:4: train.seed: must be a number (given True)",
            f"{path}:6: train.steps: given twice (first in line 5); keep one",
            f"{path}:8: sample.patch: has too few values (given [1, 2])",
            f"{path}:12: sample.flip_prob[2]: must be a valid number (given 'often')",
            f"{path}:14: steps: no such field (given 7); did you mean train.steps?",
            f"{path}:15: loss: is a section (given 3); set its fields, such as loss.name",
            "override 'train.ema': must read section.field=value",
            "override 'loss.batch=1': loss is 3, not a section",
        ]
    )


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("train.lr", "train.learning_rate"), ("train.epochs", "train.steps"), ("batch_size", "sample.batch_size"),
        ("optimizer", "train.optimizer"), ("learning-rate", "train.learning_rate"), ("train.stpes", "train.steps"),
    ],
)  # fmt: skip
def test_the_field_that_another_tools_word_means_is_named(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"no such field .*; did you mean {field}\\?"):
        load_run(None, [f"{name}=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {steps: 5\n", r"run.yaml:2: not valid YAML: expected"),
        ("train:\n\tsteps: 5\n", r"run.yaml:2: not valid YAML: found character"),
        ("a: !!python/name:os.system\n", r"run.yaml:1: not valid YAML: .*constructor"),
        ("train: &a\n  x: *a\n", "more than 100000 values, aliases written out"),
        ("null: 5", r"run.yaml: .*'None' is not a field's name; remove"),
        ("x: " + "[" * 1000, "not valid YAML: it is nested too deeply"),
        ("x: " + "9" * 5000, "not valid YAML: Exceeds the limit"),
        ("train: {steps: 1:30}", "run.yaml:1: train.steps: must be a valid integer .*'1:30'"),
        ("train: {budget: 1:30.5}", "run.yaml:1: train.budget: '1:30.5' is no duration"),
        (
            "data: {split: {by: list, validation: [7]}}",
            r"run.yaml:1: data.split.validation\[0\]: .*text .* quotes",
        ),
    ],
)
def test_files_that_are_not_a_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(write(tmp_path, text))


def test_aliases_that_stand_for_a_billion_values(tmp_path: Path) -> None:
    rows = ["a0: &a0 {x: 1}"]
    rows += [f"a{number + 1}: &a{number + 1} [{', '.join([f'*a{number}'] * 10)}]" for number in range(9)]
    with pytest.raises(ValueError, match="more than 100000 values, aliases written out"):
        load_run(write(tmp_path, "\n".join(rows)))


def test_overrides_may_be_a_dict_of_values() -> None:
    values = {"data.source": Path("cases"), "sample.patch": (8, 16, 24), "train.learning_rate": np.float32(0.5)}
    values |= {"network.channels": np.array([8, 16]), "train.budget": "2min", "train.compile": False}
    config = load_run(overrides=values)
    assert config.data.source == str(Path.cwd() / "cases")
    assert config.sample.patch == (8, 16, 24)
    assert (config.train.learning_rate, config.network.channels) == (0.5, (8, 16))
    assert (config.train.budget, config.train.compile) == (120.0, False)
    assert load_run(overrides="train.steps=5").train.steps == 5
