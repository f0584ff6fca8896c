from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.config.load import dump_run, load_run
from hasten.config.schema import (
    DataConfig,
    NetworkConfig,
    PrepareConfig,
    RunConfig,
    SampleConfig,
    SplitConfig,
    TrainConfig,
)

NAME = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
PATCH = st.none() | st.tuples(*[st.integers(1, 512)] * 3)
SHARE = st.floats(0, 1)
POSITIVE = st.floats(1e-9, 1e9)
COUNT = st.none() | st.integers(1, 10**9)


def ranges(low: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(low, 1.0), st.floats(1.0, 9.0))


SPLITS = st.builds(
    SplitConfig,
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
    fold=st.integers(0, 1),
    num_folds=st.integers(2, 9),
) | st.builds(
    SplitConfig, by=st.just("list"), validation=st.lists(NAME, min_size=1, max_size=3, unique=True).map(tuple)
)
RUNS = st.builds(
    RunConfig,
    data=st.builds(
        DataConfig,
        source=st.just("")
        | NAME.map(lambda name: "/" + name.replace("/", "-")).filter(lambda path: str(Path(path)) == path),
        spatial_dims=st.sampled_from([None, 3]),
        split=SPLITS,
    ),
    prepare=st.builds(
        PrepareConfig,
        orientation=st.sampled_from([None, "RAS", "LPI"]),
        spacing=st.none() | st.tuples(*[st.floats(1e-9, 1e4)] * 3),
        intensity=st.sampled_from([None, "zscore", "none"]),
        window=st.none() | st.tuples(st.floats(-1e6, -1), st.floats(0, 1e6)),
        num_threads=COUNT,
    ),
    sample=st.builds(
        SampleConfig,
        patch=PATCH,
        flip_prob=st.none() | st.tuples(SHARE, SHARE, SHARE),
        scale_range=ranges(0.1),
        affine_prob=SHARE,
        compile=st.none() | st.booleans(),
    ),
    network=st.builds(
        NetworkConfig,
        channels=st.just((8, 16, 32)),
        strides=st.none() | st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=2, max_size=2).map(tuple),
    ),
    train=st.builds(
        TrainConfig,
        steps=COUNT,
        learning_rate=st.none() | POSITIVE,
        device=st.sampled_from(["auto", "cpu", "cuda:1"]),
        precision=st.sampled_from([None, "fp32", "bf16"]),
        max_seconds=st.none() | POSITIVE,
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml")


@given(config=RUNS)
def test_dump_loads_back_equal(config: RunConfig, folder: Path) -> None:
    path = folder / "run.yaml"
    path.write_text(dump_run(config), encoding="utf-8")
    assert load_run(path) == config


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
        ("train.lr", "train.learning_rate"), ("lr", "train.learning_rate"), ("train.epochs", "train.steps"),
        ("max_epochs", "train.steps"), ("batch_size", "sample.batch_size"), ("train.batch_size", "sample.batch_size"),
        ("data.patch_size", "sample.patch"), ("gpus", "train.device"), ("train.num_workers", "prepare.num_threads"),
        ("model", "network.name"), ("train.loss", "loss.name"), ("data.fold", "data.split.fold"),
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
        ("train: {max_seconds: 1:30.5}", "run.yaml:1: train.max_seconds: '1:30.5' is no duration"),
        (
            "data: {split: {by: list, validation: [7]}}",
            r"run.yaml:1: data.split.validation\[0\]: .*text .* quotes",
        ),
    ],
)
def test_files_that_are_not_a_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(write(tmp_path, text))


@pytest.mark.parametrize("merge", ["*", "<<: "])
def test_aliases_that_stand_for_a_billion_values(tmp_path: Path, merge: str) -> None:
    rows = ["a0: &a0 {x: 1}"]
    for number in range(9):
        many = ", ".join([f"*a{number}"] * 10)
        rows.append(f"a{number + 1}: &a{number + 1} " + (f"{{<<: [{many}]}}" if merge == "<<: " else f"[{many}]"))
    with pytest.raises(ValueError, match="more than 100000 values, aliases written out"):
        load_run(write(tmp_path, "\n".join(rows)))


def test_overrides_may_be_a_dict_of_values() -> None:
    values = {"data.source": Path("cases"), "sample.patch": (8, 16, 24), "train.learning_rate": np.float32(0.5)}
    values |= {"network.channels": np.array([8, 16]), "train.budget": "2min", "train.compile": False}
    config = load_run(overrides=values)
    assert config.data.source == str(Path.cwd() / "cases")
    assert config.sample.patch == (8, 16, 24)
    assert (config.train.learning_rate, config.network.channels) == (0.5, (8, 16))
    assert (config.train.budget, config.train.compile) == ("2min", False)
    assert load_run(overrides="train.steps=5").train.steps == 5


def test_settings_of_earlier_versions_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("distribute: {average_every: 8, strategy: local_sgd, parts: 2}\ntrain: {validate_async: true}\n")
    assert load_run(path).distribute.parts == 2
    assert "run.yaml: train.validate_async=True, distribute.strategy=local_sgd: of an earlier" in caplog.text
    path.write_text("observe: {trackers: [jsonl, mlflow]}\n")
    assert load_run(path).observe.trackers == ("mlflow",)
    with pytest.raises(ValueError, match=r"distribute\.exchange: no such field"):
        load_run(path, ["distribute.exchange=send"])
