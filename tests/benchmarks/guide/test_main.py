"""`python -m benchmarks.guide`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.guide import claims as claims_module
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
    assert len(json.loads((tmp_path / "out" / "guide.json").read_text())["claims"]) == 2
