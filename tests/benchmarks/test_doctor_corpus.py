"""The trainings that the doctor is judged on have the fault that they are said to have, and the judge can say no."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import doctor_corpus
from benchmarks.doctor_corpus import read, score, scripts
from hasten.doctor.finding import Finding


@pytest.mark.parametrize("half", ["s", "b"])
def test_every_label_of_the_corpus_is_one_that_can_be_met(half):
    result = scripts(half)
    assert len(result) >= 25
    verdicts = {word for one in result for word in one.verdicts}
    assert verdicts <= {"launch", "input", "compute", "sync", "validation", "checkpoint"}
    assert sum(one.control for one in result) >= 3
    for one in result:
        lines = one.path.read_text().splitlines()
        assert all(not lines[label.line - 1].strip().startswith("#") for label in one.labels)


def test_a_script_that_can_not_run_here_is_an_error_before_any_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_corpus, "SCRIPTS", tmp_path)
    (tmp_path / "own.py").touch()
    (tmp_path / "s01_a.py").write_text("# verdict: compute\nimport torch\nfrom not_there import x\nimport own\n")
    with pytest.raises(ValueError, match=r"scripts import not_there; install them"):
        doctor_corpus.judged_corpus("s", steps=1, seconds=1.0, names=None)


@pytest.fixture
def script(tmp_path: Path):
    path = tmp_path / "s99_made.py"
    path.write_text(
        "# verdict: compute\n# label: small-batch both sure\n# label: unpinned-memory gpu sure\nloader = 1\n"
        "loss = 2  # label: host-read gpu sure; step-log both maybe\n"
    )
    return read(path)


def named(name: str, line: int, level: str = "finding", gain: float | None = None) -> Finding:
    return Finding(name=name, title="", where=f"x/s99_made.py:{line}", cure="", level=level, gain=gain)


def test_labels_belong_to_their_own_line_or_the_code_after_them(script):
    assert [(label.kind, label.line) for label in script.labels] == [
        ("small-batch", 4), ("unpinned-memory", 4), ("host-read", 5), ("step-log", 5),
    ]  # fmt: skip


def test_right_wrong_met_and_missed(script):
    results = [named("small-batch", 4), named("host-read", 5, "note"), named("gc-collect", 5), named("step-log", 5)]
    cpu, gpu = score(script, results, False), score(script, results, True)
    assert (cpu.met, cpu.missed) == (("small-batch",), ())
    assert (gpu.met, gpu.missed) == (("host-read", "small-batch"), ("unpinned-memory",))
    assert cpu.wrong == gpu.wrong == ("gc-collect at s99_made.py:5",)
    # What costs only on a GPU is no finding on a CPU. One at another line counts, and is told.
    assert score(script, [named("host-read", 5)], False).wrong
    assert cpu.elsewhere == ()
    other = score(script, [named("small-batch", 5)], False)
    assert (other.met, other.missed, other.elsewhere) == (("small-batch",), (), ("small-batch at s99_made.py:5",))
    assert score(script, [named("no-autocast", 4, gain=1.2)], False).wrong == ()
