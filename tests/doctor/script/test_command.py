"""Commands that can't be watched are refused before anything runs; the others are taken as typed."""

from __future__ import annotations

import sys

import pytest

from hasten.doctor.script.launch import checked


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def test_taken_as_typed_and_a_script_alone_gets_this_interpreter():
    for command in ([sys.executable, "train.py", "--lr", "0.1"], ["bash", "whatever.sh"]):
        assert checked(command) == command
    assert checked(["train.py", "--lr", "0.1"]) == [sys.executable, "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command was given"),
        (["no-such-program", "x"], "no-such-program: does not exist"),
        (["./notes.txt"], "./notes.txt: is not a program"),
        (["gone.py"], "gone.py: does not exist; check the path"),
    ],
)
def test_refused(command, message):
    with pytest.raises(ValueError, match=message):
        checked(command)


def test_python_by_name_is_found_even_where_only_this_one_is_there(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert checked(["python", "train.py"]) == [sys.executable, "train.py"]
