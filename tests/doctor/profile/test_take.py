"""A small run profiled: what is seen of it, what is written, and that nothing of it is changed."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten.config.schema import RunConfig
from hasten.doctor.profile.tables import ALL, MEMORY, OTHER, TENSOR, below, read
from hasten.doctor.profile.take import Taken, take
from hasten.doctor.profile.write import choose, write
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
    seen = read(taken.profiler)
    names = [node.name for node in below(seen.main)]
    assert {name: names.count(name) for name in ("step", *PHASES)} == {
        "step": STEPS, "data loading": STEPS, "forward": STEPS, "backward": STEPS, "optimizer": STEPS,
        "validation": 1, "checkpoint": 1,
    }  # fmt: skip
    assert (taken.steps, taken.cases, taken.device) == (STEPS, 1, "CPU")
    assert taken.plain_s > 0


def test_the_summary_is_whole(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["All Kernels"]) == {ALL, TENSOR, MEMORY, OTHER}
    assert set(summary["Phases"]) >= set(PHASES)
    assert summary["Transforms"]["PhysicalAffine"]["# Calls"] == STEPS
    assert any("Conv3d" in name for name in summary["Modules"])
    assert summary["Run"]["Steps"] == STEPS
    assert summary["Run"]["Settings"]["patch"] == "16 x 16 x 16"


def test_the_summary_is_written_as_json_and_csv(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {"summary.json", "summary.csv", "trace.json", "profile.html"}
    rows = list(csv.DictReader((out / "summary.csv").open()))
    assert (rows[0]["Table"], rows[0]["Name"]) == ("All Kernels", "All kernels")
    summary = json.loads((out / "summary.json").read_text())
    for name in ("Phases", "Transforms", "Modules", "Ops", "Kernels"):
        times = {row["Name"]: int(row["CPU Time (ns)"]) for row in rows if row["Table"] == name}
        assert times == {key: row["CPU Time (ns)"] for key, row in summary[name].items()}
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {"forward", "validation"} <= {event.get("name") for event in events}


def test_the_page_shows_phases(out: Path) -> None:
    page = (out / "profile.html").read_text()
    assert "A step takes" in page
    assert page.count("<h2>") >= 5
    for phase in PHASES:
        assert phase in page


def test_only_what_is_asked_for_is_written(taken: Taken, tmp_path: Path) -> None:
    # torch writes a trace only once.
    again = SimpleNamespace(events=taken.profiler.events, export_chrome_trace=lambda path: Path(path).write_text("{}"))
    write(replace(taken, profiler=again), tmp_path / "some", formats=("csv",))
    assert {path.name for path in (tmp_path / "some").iterdir()} == {"summary.csv", "trace.json"}


def test_a_folder_that_can_not_be_written_is_said(taken: Taken, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file/profile: cannot be written to"):
        write(taken, tmp_path / "file" / "profile")


def test_a_run_without_a_profiler_is_marked_only(config: RunConfig) -> None:
    result = take(config, steps=1, cases=1, with_profiler=False)
    assert result.profiler is None
    assert result.plain_s > 0


@pytest.mark.parametrize("text", ["json,pdf", " , "])
def test_formats_are_chosen_in_their_order(text: str) -> None:
    assert choose("html, json") == ("json", "html")
    with pytest.raises(ValueError, match="--formats"):
        choose(text)
