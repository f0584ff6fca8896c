"""A small run profiled: what is seen of it, what is written, and that nothing of it is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hasten.config.schema import RunConfig
from hasten.doctor.profile.tables import ALL, MEMORY, OTHER, TENSOR, summarise
from hasten.doctor.profile.take import Taken, take, write
from hasten.observe.ranges import PHASES
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import config_of

STEPS = 3


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("profile")
    source = write_phantoms(folder / "set", num_cases=6, shape=(24, 40, 40))
    return config_of(source, folder / "cache", "sample.affine_prob=1.0")


@pytest.fixture(scope="module")
def taken(config: RunConfig) -> Taken:
    return take(config, steps=STEPS, cases=1)


@pytest.fixture(scope="module")
def out(taken: Taken, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(taken, tmp_path_factory.mktemp("out") / "new" / "profile")


def test_every_phase_of_a_run_is_seen_as_often_as_it_was(taken: Taken) -> None:
    seen = {name: row["# Calls"] for name, row in summarise(taken.profiler)["Phases"].items()}
    each = dict.fromkeys(("data loading", "forward", "backward", "optimizer"), STEPS)
    assert seen == {**each, "validation": 1, "checkpoint": 1, "outside the phases": 0}
    assert (taken.steps, taken.cases, taken.device) == (STEPS, 1, "CPU")
    assert taken.plain_s > 0


def test_the_summary_is_whole(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["All Kernels"]) == {ALL, TENSOR, MEMORY, OTHER}
    assert set(summary["Phases"]) >= set(PHASES)
    assert summary["Transforms"]["PhysicalAffine"]["# Calls"] == STEPS
    assert any("Conv3d" in name for name in summary["Modules"])
    assert summary["Run"]["Steps"] == STEPS
    assert summary["Run"]["Settings"]["patch"] == [16, 16, 16]


def test_summary_trace_and_page_are_written(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {"summary.json", "trace.json", "profile.html"}
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {"forward", "validation"} <= {event.get("name") for event in events}
    assert all(phase in (out / "profile.html").read_text() for phase in PHASES)


def test_a_folder_that_can_not_be_written_is_said(taken: Taken, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file/profile: cannot be written to"):
        write(taken, tmp_path / "file" / "profile")


def test_a_run_without_a_profiler_is_marked_only(config: RunConfig) -> None:
    result = take(config, steps=1, cases=1, with_profiler=False)
    assert result.profiler is None
    assert result.plain_s > 0
