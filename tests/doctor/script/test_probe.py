"""The probe's own pieces, in this process and without touching torch."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten.doctor.script.launch as launch
from hasten.doctor.script.records import read_records


@pytest.fixture
def probe(monkeypatch):
    monkeypatch.syspath_prepend(str(launch.INJECT))
    yield lambda name: importlib.import_module(f"hasten_probe.{name}")
    for name in [name for name in sys.modules if name.startswith("hasten_probe")]:
        del sys.modules[name]


def test_each_moment_is_counted_once(probe, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    timeline = probe("session")
    monkeypatch.setattr(timeline, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    line = timeline.Timeline()

    def after(seconds):
        clock.now += seconds
        return line

    after(1).push("wait")
    after(2).pop()
    line.relabel("sample")
    after(3).push("optimizer")
    after(4).push("forward")
    after(5).pop()
    after(6).pop()
    after(7).mark()
    line.over = "validation"
    after(8).mark()
    assert line.cut() == {"overhead": 1, "wait": 2, "sample": 10, "optimizer": 10, "forward": 5, "validation": 8}


def test_a_cut_closes_what_an_error_left_open(probe):
    line = probe("session").Timeline()
    line.push("forward")
    line.push("wait")
    line.cut()
    assert line.stack == ["overhead"]
    line.pop()
    assert line.stack == ["overhead"]


def test_user_code_is_what_is_in_no_library(probe):
    sites = probe("sites")
    import torch

    assert sites.is_user(__file__)
    assert sites.is_user("/home/somebody/train.py")
    assert sites.is_user("<string>")
    assert not sites.is_user(torch.__file__)
    assert not sites.is_user(subprocess.__file__)
    assert not sites.is_user(sites.__file__)
    assert not sites.is_user("<eval_with_key>.3")
    assert sites.nearest() == f"{__file__}:{sys._getframe().f_lineno}"


def test_the_hook_runs_once_after_somebodys_import(probe, tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    importlib.import_module("hasten_probe").after_import(
        "watched_module", lambda: seen.append(sys.modules["watched_module"].VALUE)
    )
    assert seen == []
    module = importlib.import_module("watched_module")
    assert seen == [1]
    assert "exec_module" not in vars(module.__spec__.loader)
    del sys.modules["watched_module"]
    importlib.import_module("watched_module")
    assert seen == [1]
    del sys.modules["watched_module"]


def test_a_failing_hook_does_not_fail_the_import(probe, tmp_path, monkeypatch, capsys):
    (tmp_path / "other_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("hasten_probe").after_import("other_module", lambda: 1 / 0)
    importlib.import_module("other_module")
    assert "cannot watch other_module (ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(("wanted", "word"), [({"HASTEN_DOCTOR": "{}"}, "in"), ({}, "not in")])
def test_the_probe_is_there_where_it_is_wanted_and_imports_no_torch(wanted, word):
    code = f"import sys; assert 'hasten_probe' {word} sys.modules; assert 'torch' not in sys.modules"
    env = {"PYTHONPATH": str(launch.INJECT), **wanted}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=30)


def test_what_json_does_not_know_is_made_plain(probe, monkeypatch, tmp_path):
    given = {"steps": [{}], "a": (math.inf, math.nan), "b": Path("x"), "d": [True, 1, 0.5]}
    monkeypatch.setattr(probe("on_steps"), "_gather", lambda session, ended: given)
    probe("on_steps").write(SimpleNamespace(out=tmp_path), "exit")
    (record,) = read_records(tmp_path)
    assert record.raw == {"steps": [{}], "a": [None, None], "b": "x", "d": [True, 1, 0.5]}


def test_records_half_written_or_without_steps_are_left_out(tmp_path):
    (tmp_path / "record-1.json").write_text('{"rank": 1, "steps": [{"seconds": 1}]}')
    (tmp_path / "record-2.json").write_text('{"rank": 0, "steps": [{"seco')
    (tmp_path / "record-3.json").write_text('{"rank": 0, "steps": []}')
    (tmp_path / "record-4.json").write_text('{"rank": 0, "steps": [{"seconds": 1}]}')
    (tmp_path / "record-5.json").write_text('{"rank": 0, "steps": [{"seconds": 1}, {"seconds": 2}]}')
    assert [(each.rank, each.steps) for each in read_records(tmp_path)] == [(0, 2), (1, 1)]


def test_a_round_counts_for_the_share_of_the_pass_that_was_made(probe):
    usual = {"seconds": 1.0, "cpu": 1.0, "parts": {"forward": 0.9, "wait": 0.1}, "round": 1.0}
    after = {"seconds": 4.0, "cpu": 4.0, "parts": {"forward": 0.9, "wait": 1.1, "validation": 2.0}, "round": 0.1}
    (_, first, last, second) = probe("on_rounds").weighted_steps(SimpleNamespace(steps=[usual, usual, after, usual]))
    assert (first, second) == (usual, usual)
    assert last["parts"] == pytest.approx({"forward": 0.9, "wait": 0.2, "validation": 0.2})
    assert (last["seconds"], last["cpu"]) == pytest.approx((1.3, 1.3))
