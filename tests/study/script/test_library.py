"""Every script of tests/study/scripts, run as a user would: its fault at its line and nothing else, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hasten.study.script.doctor import judge
from hasten.study.script.launch import run_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
QUICK = ("host_read", "plain")
"""These make the fast part: a fault and silence."""


def header(path: Path) -> tuple[str, str] | None:
    """Finding expected and flags, of scripts whose first line is `# expects: NAME  flags: ...`."""
    first = path.read_text().splitlines()[0]
    if not first.startswith("# expects: "):
        return None
    name, _, flags = first.removeprefix("# expects: ").partition("flags: ")
    return name.strip(), flags


def cases(folder: str) -> list:
    paths = [path for path in sorted((SCRIPTS / folder).glob("*.py")) if header(path) is not None]
    return [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else pytest.mark.slow) for p in paths]


def command(path: Path) -> list[str]:
    if "torchrun" in header(path)[1]:
        return [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2", str(path)]
    return [sys.executable, str(path)]


def told_of(path: Path):
    cuda = "--for cuda" in header(path)[1]
    run = run_script(command(path), steps=24, seconds=120, experiments=False, assume_cuda=cuda, quiet=True)
    assert run.ended in ("bounded", "finished"), run.output
    assert run.exit_code == 0
    output = judge(run, cuda)
    assert output.diagnosis is not None
    return output


def fault_lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [f"{path.name}:{number}" for number, line in enumerate(lines, start=1) if line.endswith("# fault")]


@pytest.mark.parametrize("path", cases("bad"))
def test_the_fault_is_found_at_its_line_and_nothing_else_is(path):
    output = told_of(path)
    results = [(each.name, Path(each.where).name) for each in output.findings if each.level == "finding"]
    assert results == [(header(path)[0], line) for line in fault_lines(path)]
    assert all(each.cure for each in output.findings)


@pytest.mark.parametrize("path", cases("healthy"))
def test_nothing_is_found_in_a_healthy_script(path):
    output = told_of(path)
    assert fault_lines(path) == []
    assert [(each.name, each.where) for each in output.findings] == []
