"""A user's file: what is loaded from it, and what is said where it can't be."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

import pytest

from hasten.augment.grid import Flip
from hasten.config.user_code import UserCode, load_user_code, name_of

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from hasten.augment.grid import Flip

@dataclass(frozen=True)
class Mine:
    prob: float = 0.5

mine = [Flip(prob=Mine().prob)]
number = 3
"""


def load(text: str) -> UserCode:
    return load_user_code(text, setting="augment.chain")


def write(folder: Path, text: str, name: str = "chains.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_name_and_the_hash_of_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    before = set(sys.modules)
    one = load(f"{path}:mine")
    assert one.value == [Flip(prob=0.5)]
    assert (one.source, one.path) == (path.read_bytes(), str(path))
    assert all(name.startswith("_hasten_user_") for name in set(sys.modules) - before)
    assert not (tmp_path / "__pycache__").exists()
    write(tmp_path, GOOD.replace("0.5", "0.7"))  # of the same size, within the same tick of the clock
    other = load(f"{path}:mine")
    assert other.value[0].prob == 0.7
    assert other.digest != one.digest
    assert load(f"{path}:mine").digest == other.digest


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_chains_for_a_test").mkdir()
    write(tmp_path, GOOD, "my_chains_for_a_test/good.py")
    write(tmp_path, "one = 1\nraise KeyError('late')", "my_chains_for_a_test/bad.py")
    write(tmp_path, "import absent_for_a_test", "my_chains_for_a_test/needs.py")
    with pytest.raises(ValueError, match=r"no module my_chains_for_a_test; .*PYTHONPATH"):
        load("my_chains_for_a_test.good:mine")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("my_chains_for_a_test.good:mine").digest == load(f"{tmp_path}/my_chains_for_a_test/good.py:mine").digest
    with pytest.raises(ValueError, match=r"bad.py:2: raise KeyError\('late'\): raises KeyError"):
        load("my_chains_for_a_test.bad:one")
    with pytest.raises(ValueError, match=r"needs.py:1: import absent_for_a_test: .*ModuleNotFoundError"):
        load("my_chains_for_a_test.needs:one")
    with pytest.raises(ValueError, match=r"there is no module my_chains_for_a_test.goood;"):
        load("my_chains_for_a_test.goood:mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one = 1\ntwo = one / 0\n", "chains.py:2: two = one / 0: raises ZeroDivisionError"),
        ("mine = [\n", "chains.py:1: mine = [: '[' was never closed"),
        ("raise SystemExit(2)\n", "chains.py:1: raise SystemExit(2): raises SystemExit: 2"),
        (GOOD, "chains.py has no name main; did you mean mine?"),
        ("", "chains.py has no name main; it has none"),
    ],
)
def test_a_file_that_does_not_serve(tmp_path: Path, text: str, message: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        load(f"{write(tmp_path, text)}:main")
    assert str(raised.value).startswith("augment.chain: ")
    assert "\n" not in str(raised.value)
    if "no name" not in message:
        assert not [name for name in set(sys.modules) - before if name.startswith("_hasten_user_")]


def test_the_name_of_a_class_or_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(TextWrapper) == "textwrap:TextWrapper"
    write(tmp_path, "def make(): ...\ndef outer():\n    def inner(): ...\n    return inner\n", "module_for_a_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    named = load("module_for_a_test:make")
    assert name_of(named.value) == "module_for_a_test:make"
    assert load(name_of(load(f"{tmp_path / 'module_for_a_test.py'}:make").value)).source == named.source
    write(tmp_path, "chain = [print]\n", "chains_for_a_test.py")
    assert name_of(importlib.import_module("chains_for_a_test").chain) == "chains_for_a_test:chain"
    with pytest.raises(ValueError, match=r"outer\.<locals>\.inner: .*at the top of a file"):
        name_of(load("module_for_a_test:outer").value())
    with pytest.raises(ValueError, match=r"<locals>\.<lambda>: has no name at the top"):
        name_of(lambda: None)
    scope: dict[str, Any] = {}
    exec("def typed(): ...", scope)
    with pytest.raises(ValueError, match="typed: is defined in no file"):
        name_of(scope["typed"])
    with pytest.raises(ValueError, match="int: has no name at the top"):
        name_of(3)
