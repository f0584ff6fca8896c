"""`python -m benchmarks.guide`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.guide import claims as claims_module
from benchmarks.guide import run as run_module
from benchmarks.guide.__main__ import app
from benchmarks.guide.claim import Guidance, Outcome


@pytest.fixture
def two_claims(monkeypatch):
    """A guide of one claim that holds and one that can't be measured anywhere."""

    def run(budget):
        return Outcome(verdict="holds", measured="2.00x (1.90 to 2.10), new")

    def broken(budget):
        raise OSError("no room")

    claims = (
        Guidance(name="first", claim="The first is faster", source="a guide", run=run),
        Guidance(name="second", claim="The second is faster", source="a guide", run=broken),
    )
    monkeypatch.setattr(claims_module, "CLAIMS", claims)


def test_table_and_files(two_claims, tmp_path):
    completed = CliRunner().invoke(app, ["--out", str(tmp_path / "out")], env={"COLUMNS": "140"})
    assert completed.exit_code == 0, completed.output
    assert "The first is faster" in completed.output
    assert "failed: OSError: no room" in completed.output
    assert "1 of 2 claims hold" in completed.output
    assert (tmp_path / "out" / "guide.html").is_file()
    assert len(json.loads((tmp_path / "out" / "guide.json").read_text())["claims"]) == 2


def test_only_some(two_claims):
    completed = CliRunner().invoke(app, ["--only", "second"], env={"COLUMNS": "140"})
    assert completed.exit_code == 0
    assert "The first" not in completed.output


def test_an_unknown_claim_names_the_near_ones(two_claims):
    completed = CliRunner().invoke(app, ["--only", "secand"])
    assert isinstance(completed.exception, ValueError)
    assert "did you mean second?" in str(completed.exception)


def test_a_budget_that_is_too_short_for_anything_is_refused():
    completed = CliRunner().invoke(app, ["--seconds", "1"])
    assert completed.exit_code == 2
    assert "--seconds" in completed.output


def test_a_file_in_the_place_of_the_folder_is_told_before_the_measuring(two_claims, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(run_module, "run_guide", lambda *_, **__: pytest.fail("measured first"))
    completed = CliRunner().invoke(app, ["--out", str(tmp_path / "file")])
    assert isinstance(completed.exception, ValueError)
    assert "name another folder" in str(completed.exception)
