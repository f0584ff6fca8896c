"""Scripts whose fault only an experiment shows, run as a user would: found at its line, and no finding beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hasten.study.script.doctor import judge
from hasten.study.script.launch import run_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
MARK = "# expects by experiment: "

pytestmark = pytest.mark.slow


def scripts(folder: str, *, experimental: bool) -> list:
    paths = sorted((SCRIPTS / folder).glob("*.py"))
    return [pytest.param(p, id=p.stem) for p in paths if p.read_text().startswith(MARK) == experimental]


def told_of(path: Path):
    # One thread: with others on the machine, threads that wait for one another slow any arm down at random.
    run = run_script(
        [sys.executable, str(path)], steps=30, seconds=40, experiments=True, quiet=True, env={"OMP_NUM_THREADS": "1"}
    )
    assert run.ended in ("bounded", "finished"), run.output
    assert run.exit_code == 0, run.output
    errors = {name: result["error"] for name, result in run.records[0].experiments.items() if "error" in str(result)}
    assert errors == {}
    return judge(run).findings


@pytest.mark.parametrize("path", scripts("bad", experimental=True))
def test_the_fault_is_found_at_its_line(path):
    lines = path.read_text().splitlines()
    expected = lines[0].removeprefix(MARK)
    (number,) = (number for number, line in enumerate(lines, start=1) if line.endswith("# fault"))
    for _ in range(2):  # A machine that is busy during one may be quiet during the other.
        findings = told_of(path)
        actual = [(each.name, Path(each.where).name) for each in findings]
        others = [each for each in findings if each.level == "finding" and each.name != expected]
        if (expected, f"{path.name}:{number}") in actual and not others:
            return
    assert actual == [(expected, f"{path.name}:{number}")]


@pytest.mark.parametrize("path", scripts("healthy", experimental=False))
def test_a_healthy_script_stays_without_a_finding(path):
    if "torchrun" in path.read_text().splitlines()[0]:
        pytest.skip("several ranks make no experiments")
    for _ in range(2):
        results = [(each.name, each.where) for each in told_of(path) if each.level == "finding"]
        if not results:
            return
    assert results == []


def test_autocast_is_judged_on_any_machine():
    """Whether it gains is the machine's affair; that it was measured and never contradicts its own numbers is ours."""
    path = SCRIPTS / "perhaps" / "no_autocast.py"
    run = run_script([sys.executable, str(path)], steps=20, seconds=60, quiet=True, env={"OMP_NUM_THREADS": "1"})
    result = run.records[0].experiments["autocast"]
    assert "error" not in result
    named = "no-autocast" in [each.name for each in judge(run).findings]
    assert not named or result["low"] > 1
