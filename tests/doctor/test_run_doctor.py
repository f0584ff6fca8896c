"""A run's own steps, with faults put in, and what is said of them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hasten.config.schema import RunConfig
from hasten.doctor.run import doctor as doctor_module
from hasten.doctor.run.doctor import RunDiagnosis, diagnose_run, lines, write_page
from hasten.doctor.run.measure import Marks, timed_step
from hasten.doctor.time_split import PARTS
from hasten.feed.feed import Feed
from hasten.observe.rundir import write_json
from hasten.phantoms.organs import write_phantoms
from hasten.training.step import TrainStep
from tests.training.runs import config_of

SLOW = 0.3
"""Seconds, where an undisturbed step takes a hundredth of that."""
SOME = ("train.steps=400", "train.validate_every=400", "train.checkpoint_every=400")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunConfig]:
    folder = tmp_path_factory.mktemp("doctor")
    source = write_phantoms(folder / "set", num_cases=6, shape=(24, 40, 40))
    return lambda *overrides, cache="cache": config_of(source, folder / cache, *SOME, *overrides)


def look(config: RunConfig, **options) -> RunDiagnosis:
    return diagnose_run(config, **{"steps": 3, "seconds": 1.0, **options})


@pytest.fixture(scope="module")
def healthy(make: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> RunDiagnosis:
    """Of a run whose diagnosis leaves nothing behind but the cache."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("tempfile.tempdir", str(folder / "tmp"))
        result = look(make(), steps=6)
    assert [path.name for path in folder.iterdir()] == ["tmp"]
    assert list((folder / "tmp").glob("hasten-doctor-*")) == []
    return result


def test_the_parts_add_up_to_a_step(healthy: RunDiagnosis):
    split = healthy.split
    assert set(split.parts) == set(PARTS)
    assert sum(split.parts.values()) == pytest.approx(split.step_s)
    assert all(value >= 0 for value in split.parts.values())
    assert all(split.parts[name] > 0 for name in ("forward", "backward", "optimizer", "sample", "validation"))
    assert split.fixed_batch_s is not None
    assert split.feed_alone_s is not None
    assert split.doubled is not None
    assert healthy.periodic.timed_cases >= 1


def test_the_timed_step_is_the_runs_own_in_every_setting():
    step = TrainStep(
        network=torch.nn.Identity(),
        loss=torch.nn.MSELoss(),
        update=SimpleNamespace(backward=print, apply=print),
        device=torch.device("cpu"),
        fused_kernels=True,
        autotune=True,
        accumulate=2,
    )
    timed = timed_step(step, Marks(step.device))
    names = {field.name for field in dataclasses.fields(step)} - {"loss", "update"}
    assert {name for name in names if getattr(timed, name) is not getattr(step, name)} == set()


def test_a_slow_feed(make: Callable[..., RunConfig], monkeypatch):
    batches = Feed.__iter__

    def late(self: Feed) -> Iterator:
        for batch in batches(self):
            time.sleep(SLOW)
            yield batch

    monkeypatch.setattr(Feed, "__iter__", late)
    result = look(make())
    assert result.diagnosis.bound == "input"
    assert result.split.parts["sample"] >= 0.9 * SLOW
    assert (result.split.feed_alone_s or 0) >= SLOW
    assert "slow-augmentation" in [finding.name for finding in result.findings]


def test_validation_at_every_step(make: Callable[..., RunConfig]):
    result = look(make("train.validate_every=1"))
    (finding,) = [finding for finding in result.findings if finding.name == "validation-often"]
    assert int(finding.cure.removeprefix("train.validate_every=")) > 1
    assert (finding.gain or 0) > 1.1


def test_cases_that_are_prepared_before_the_first_step(make: Callable[..., RunConfig], monkeypatch):
    prepare = doctor_module.arena_of
    monkeypatch.setattr(doctor_module, "arena_of", lambda planned: (time.sleep(5 * SLOW), prepare(planned))[1])
    config = make("train.steps=14", "train.validate_every=14", "train.checkpoint_every=14", cache="cold")
    result = look(config)
    assert result.diagnosis.bound == "input"
    assert result.once["cases"] >= 5 * SLOW
    assert result.findings[0].name == "cold-cache"
    assert look(config).split.parts["prepare"] == 0, "the cache holds them now"


def test_2d_cases(tmp_path: Path):
    source = write_phantoms(tmp_path / "set", num_cases=6, shape=(1, 64, 64))
    config = config_of(source, tmp_path / "cache", *SOME, "sample.patch=[1,32,32]", "network.strides=[[1,2,2]]")
    assert look(config, steps=2).split.doubled is not None


def test_text_json_and_page(healthy: RunDiagnosis, tmp_path: Path):
    text = "\n".join(lines(healthy))
    assert text.startswith(healthy.diagnosis.sentence)
    assert all(finding.cure in text for finding in healthy.findings)
    write_json(tmp_path / "doctor.json", healthy)
    content = json.loads((tmp_path / "doctor.json").read_text())
    assert content["split"]["parts"] == pytest.approx(healthy.split.parts)
    assert content["settings"]["batch_size"] == 3
    page = write_page(healthy, tmp_path / "doctor.html", source="set").read_text()
    assert "Where a step" in page
    assert healthy.diagnosis.sentence in page


@pytest.mark.parametrize("options", [{"steps": 1}, {"seconds": 0}])
def test_bounds_that_allow_nothing(options, make: Callable[..., RunConfig]):
    with pytest.raises(ValueError, match="at least 2 steps"):
        look(make(), **options)


def test_bad_input_is_told_before_anything_runs(make: Callable[..., RunConfig]):
    with pytest.raises(ValueError, match=r"data\.source"):
        look(RunConfig())
    with pytest.raises(ValueError, match=r"sample\.patch"):
        look(make("sample.patch=[17,16,16]"))
