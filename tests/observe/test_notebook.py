from __future__ import annotations

import json
from pathlib import Path

import nbclient
import nbformat
import pytest

from hasten.cases.types import Case, CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.load import load_run
from hasten.evaluation.evaluate import CaseScore, Evaluation
from hasten.evaluation.pairs import Pairs
from hasten.observe.notebook import PagePath, Plan, Summary, cell_progress

SUMMARY = {
    "name": "<b>", "status": "finished", "steps": 40, "best": {"metric": "mean_dice", "value": 0.87654, "step": 30},
    "seconds": {"total": 12.0, "train": 9.0}, "earlier_seconds": 3.0,
    "accelerators": {"bf16": {"on": True, "reason": "faster"}},
}  # fmt: skip
PLAN = {
    "fingerprint": {"name": "Set", "num_cases": 12},
    "decisions": {"sample.patch": {"value": [8, 8], "reason": "fits"}},
}


def test_a_cell_shows_the_last_lines_of_a_run_s_progress_in_one_output() -> None:
    assert cell_progress() is None  # outside of a notebook
    notebook = nbformat.v4.new_notebook()
    text = """
from hasten.observe.notebook import Summary, cell_progress
progress = cell_progress()
progress.start(20)
for step in range(1, 21):
    progress.update(step, loss=1 / step, score=step / 20, best=step / 20)
"""
    notebook.cells = [nbformat.v4.new_code_cell(text), nbformat.v4.new_code_cell(f"Summary({SUMMARY!r})")]
    nbclient.NotebookClient(notebook, timeout=600, iopub_timeout=600, kernel_name="python3").execute()
    (shown,), (summary,) = (cell.outputs for cell in notebook.cells)
    lines = shown["data"]["text/plain"].splitlines()
    assert [line.split()[1] for line in lines] == [f"{step}/20" for step in range(9, 21)]
    assert "Dice 1.0000 (best 1.0000)" in lines[-1]
    assert "<td>bf16</td><td>on: faster</td>" in summary["data"]["text/html"]


@pytest.mark.parametrize(
    ("shown", "text", "cells"),
    [
        (
            Summary(SUMMARY),
            "<Summary of <b>: finished, Dice 0.8765 at step 30, 40 steps in 15.0 s>",
            ["train", "9.0 s"],
        ),
        (Summary(), "<Summary of None: None, no validation, None steps in 0.0 s>", []),
        (Plan(PLAN), "<Plan of Set: 12 cases, 1 decisions>", ["sample.patch", "[8, 8]", "fits"]),
    ],
)
def test_a_result_has_a_short_text_and_a_table_and_stays_the_content_of_its_file(
    shown: Summary | Plan, text: str, cells: list[str]
) -> None:
    assert repr(shown) == text
    assert "<b>:" not in shown._repr_html_()
    assert [cell for cell in cells if f"<td>{cell}</td>" not in shown._repr_html_()] == []
    assert json.loads(json.dumps(shown)) == shown


def test_data_classes_of_many_cases_are_one_short_line() -> None:
    cases = tuple(Case(id=str(number), image=(Path("a"),)) for number in range(500))
    case_set = CaseSet(name="Set", source=Path("x"), cases=cases, labels={0: "background", 1: "Liver"})
    config = load_run(overrides=["train.steps=7", "data.split.by=fold"])
    assert repr(config) == "<RunConfig: data.split.by='fold', train.steps=7>"
    assert repr(case_set) == "<CaseSet Set: 500 cases, 3-D, image; Liver>"
    facts = Fingerprint(
        name="Set", num_cases=500, spatial_dims=3, modality="CT", channels=("CT",), labels=case_set.labels,
        shapes=((1, 2, 3),) * 500, spacings=((1.0, 1.0, 1.0),) * 500, sampled_cases=1, intensity={},
        foreground_intensity={}, crop_fraction=1.0,
    )  # fmt: skip
    assert repr(facts) == "<Fingerprint of Set: 500 cases, 3-D, CT; 2 classes>"
    score = CaseScore(case="a", name="Liver", labelled=1, predicted=1, dice=0.5, iou=1 / 3)
    pairs = Pairs(
        pairs=(),
        labels={1: "Liver"},
        regions={},
        ignore=None,
        predictions=Path("p"),
        source=Path("l"),
        num_labelled=500,
    )
    evaluation = Evaluation(pairs=pairs, scores=(score,) * 500, unit="mm", tolerance=1.0, surfaces=False)
    assert repr(evaluation) == "<Evaluation: mean Dice 0.5000, cases: 1>"
    assert "<td>Liver</td><td>0.5</td><td>0.3333</td>" in evaluation._repr_html_()


def test_the_path_of_a_page_is_a_path_that_a_notebook_shows_as_the_page(tmp_path: Path) -> None:
    path = PagePath(tmp_path / "a.html")
    path.write_text('<p class="x">é</p>', encoding="utf-8")
    assert path == tmp_path / "a.html"
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;é&lt;/p&gt;"' in path._repr_html_()
