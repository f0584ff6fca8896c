from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import Claim, arguments, finish


@pytest.fixture(autouse=True)
def _short_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.busy_machine", lambda: 0.0)


def test_last_line_is_the_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = [Claim.at_least("ratio", 2.5, 2), Claim.at_most("share", 0.2, 0.05), Claim.at_least("absent", None, 1)]
    results = {"a_s": [2.0, 1.0, 3.0], "b_s": [1.0]}
    path = finish("fill", claims, results, tmp_path / "new", quick=False, others_before=0.1)
    last = json.loads(capsys.readouterr().out.rstrip("\n").splitlines()[-1])
    assert last == {
        "bench": "fill",
        "claims": [
            {"name": "ratio", "value": 2.5, "goal": ">= 2", "holds": True},
            {"name": "share", "value": 0.2, "goal": "<= 0.05", "holds": False},
            {"name": "absent", "value": None, "goal": ">= 1", "holds": False},
        ],
    }
    record = json.loads(path.read_text())
    assert record["claims"] == last["claims"]
    figures = {"n": 3, "median": 2.0, "min": 1.0, "max": 3.0, "iqr": 1.0, "raw": [2.0, 1.0, 3.0]}
    assert record["results"]["a_s"] == figures
    assert record["cores_used_by_others"] == {"before": 0.1, "after": 0.0}
    assert {"cpu", "cores", "ram_gb", "card"} <= set(record["hardware"])
    assert len(record["load_average"]["before"]) == len(record["load_average"]["after"]) == 3
    assert record["versions"]["torch"]
    assert "commit" in record


def test_claims_on_figures_that_are_no_numbers() -> None:
    assert not Claim.at_least("x", float("nan"), 0).holds
    assert Claim.at_least("x", float("nan"), 0).value is None
    assert Claim.at_least("x", 2.0, 2).holds
    assert Claim.at_most("x", 2.0, 2).holds


def test_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dataset.json").write_text("{}")
    given = arguments("x", ["--quick", "--data", str(tmp_path), "--ct-cases", "3"], ct_cases={"type": int})
    assert given.quick
    assert given.data == tmp_path
    assert given.ct_cases == 3
    with pytest.raises(SystemExit):
        arguments("x", ["--data", str(tmp_path / "nothing")])
    assert "dataset.json" in capsys.readouterr().err
