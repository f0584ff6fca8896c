"""What a transform's identity covers: all code and data of the user's that it runs with, and nothing that varies."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose, Lambdad

from hasten.cache.chain import split_chain
from hasten.cache.identity import Digester, chain_identity, item_identity

HELPERS = """
FACTOR = 2

def scaled(value):
    return value * FACTOR
"""

SOURCE = """
import functools
import logging
import random
import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from monai.transforms import Lambdad, MapTransform, ScaleIntensity

import identity_helpers
from identity_helpers import scaled as imported

LEVEL = 10
TABLE = {"liver": 20, "spleen": [b"30", 31]}
LOG = logging.getLogger("one")
LOCK = threading.Lock()
LOCAL = threading.local()
DRAW = random.Random()
RNG = np.random.default_rng()
HALF = functools.partial(max, 0.5)
SCALE = ScaleIntensity(0.0, 40.0)
MODEL = torch.nn.Linear(2, 2)
torch.nn.init.constant_(MODEL.weight, 50.0), torch.nn.init.zeros_(MODEL.bias)
SMALL = {min, max}

class Window:
    C = 80
    _lock = threading.Lock()

    @staticmethod
    def low():
        return 90

    @classmethod
    def high(cls):
        return 100

@dataclass
class Setting:
    size: int = 130
    names: list = field(default_factory=lambda: [140])

def helper(value):
    return deeper(value) + 150

def deeper(value):
    return value + 160 if value else helper(value)  # mutual recursion

@functools.cache
def cached(value):
    return value + 180

def tagged(value):
    return value * tagged.factor

tagged.factor = 190

def traced(function):
    @functools.wraps(function)
    def run(*values):
        LOG.info("a call")
        return function(*values)
    return run

@traced
def decorated(value):
    return value + 200

class Base(MapTransform):
    low = 210

    def go(self, value):
        return value + 220

class Mine(Base):
    def __init__(self, kind=None):
        super().__init__("image")
        self.kind, self.parent, self.log = kind, self, LOG

    def __call__(self, item):
        with LOCK:
            LOG.info("%s", LEVEL)
        return super().go(item)

def locally(value):
    import identity_helpers as local
    from identity_helpers import scaled
    return local, scaled

def flow(value):
    try:
        first = value[0]
    except KeyError:
        first = 0
    return first

def odd(value):
    return LOG, LOCK, LOCAL, DRAW, RNG, threading, np.float32, print, sorted(SMALL), missing
"""

EDITS = {
    "base class": ("Mine()", "value + 220", "value + 221"),
    "class attribute": ("Mine()", "low = 210", "low = 211"),
    "constant": ("Mine()", "LEVEL = 10", "LEVEL = 11"),
    "constant in a lambda": ("lambda value: value + LEVEL", "LEVEL = 10", "LEVEL = 11"),
    "container": ("lambda value: TABLE", "31]", "32]"),
    "helper": ("lambda value: helper(value)", "+ 150", "+ 151"),
    "helper of a helper": ("lambda value: helper(value)", "+ 160", "+ 161"),
    "cached helper": ("lambda value: cached(value)", "+ 180", "+ 181"),
    "decorated helper": ("lambda value: decorated(value)", "+ 200", "+ 201"),
    "decorator": ("decorated", "a call", "another call"),
    "attribute of a function": ("tagged", "factor = 190", "factor = 191"),
    "module's function": ("lambda value: identity_helpers.scaled(value)", "value * FACTOR", "value / FACTOR"),
    "module's constant": ("lambda value: identity_helpers.scaled(value)", "FACTOR = 2", "FACTOR = 3"),
    "imported function": ("lambda value: imported(value)", "FACTOR = 2", "FACTOR = 3"),
    "module imported by a function": ("locally", "FACTOR = 2", "FACTOR = 3"),
    "instance": ("Mine(Window())", "C = 80", "C = 81"),
    "class method": ("Mine(Window)", "return 100", "return 101"),
    "bound method of a base class": ('Lambdad("image", Mine().go)', "value + 220", "value + 221"),
    "partial": ("lambda value: HALF(value)", "max, 0.5", "max, 0.6"),
    "transform": ("lambda value: SCALE(value)", "40.0", "41.0"),
    "network": ("lambda value: MODEL(value)", "50.0", "51.0"),
    "argument names": ("lambda value: tagged(value=value)", "tagged(value):", "tagged(value, other=None):"),
    "exception": ("flow", "except KeyError", "except IndexError"),
}


def load(folder: Path, expression: str, old: str = "", new: str = "") -> Any:
    """What `expression` is in a user's module, and in its helper's, of which an edit was made."""
    for name, source in (("identity_helpers", HELPERS), ("identity_user", f"{SOURCE}\nmade = {expression}\n")):
        module = types.ModuleType(name)
        path = folder / f"{name}.py"
        path.write_text(source.replace(old, new) if old else source)
        module.__file__ = str(path)
        sys.modules[name] = module
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    return sys.modules["identity_user"].made  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("identity_helpers", "identity_user"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_a_transform_uses_counts_and_no_other(folder: Path, edit: str) -> None:
    expression, old, new = EDITS[edit]
    assert old in SOURCE + HELPERS
    before = Digester().digest(load(folder, expression))
    assert before != Digester().digest(load(folder, expression, old, new))
    unused = load(folder, expression, "\nLEVEL =", "\nUNUSED = 1  # a comment\n\nLEVEL =")
    assert expression == "locally" or before == Digester().digest(unused)


def test_the_class_of_a_row_counts(folder: Path) -> None:
    before = item_identity({"row": load(folder, "Setting(1)")})
    assert before == item_identity({"row": load(folder, "Setting(1)")})
    assert before != item_identity({"row": load(folder, "Setting(2)")})
    assert before != item_identity({"row": load(folder, "Setting(1)", "[140]", "[141]")})


def test_what_varies_between_runs_does_not_count(folder: Path) -> None:
    before = Digester().digest(load(folder, "odd"))
    module = sys.modules["identity_user"]
    module.LOG.setLevel("DEBUG")  # type: ignore[attr-defined]
    module.DRAW.random(), module.RNG.random()  # type: ignore[attr-defined]
    module.LOCAL.value = 1  # type: ignore[attr-defined]
    assert before == Digester().digest(module.made)  # type: ignore[attr-defined]


PRINT = """
import sys
sys.path[:0] = sys.argv[1:]
import identity_user
from hasten.cache.identity import Digester
print(Digester().digest(identity_user.made))
"""


def test_another_process_finds_the_same_identity(folder: Path) -> None:
    expressions = [*sorted({edit[0] for edit in EDITS.values()}), "odd", "{helper, cached, Window, Window.C}"]
    expressions.append("lambda value: value in {'a', 'b', 'c'}")
    here = Digester().digest(load(folder, f"[{', '.join(f'({each})' for each in expressions)}]"))
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", PRINT, str(folder)]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert here == there.strip()


def test_a_container_that_holds_itself_is_named() -> None:
    held: list[Any] = [1]
    held.append(held)
    with pytest.raises(ValueError, match="Lambdad: a list, tuple or dictionary that it uses holds itself"):
        chain_identity(split_chain(Compose([Lambdad("image", lambda value: (value, held))])))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"one", b"two"),
        (bytearray(b"one"), bytearray(b"two")),
        (Path("one"), Path("two")),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (torch.zeros(2).to_sparse(), torch.ones(2).to_sparse()),
        (torch.zeros(2, device="meta"), torch.zeros(3, device="meta")),
        (np.array(["one", None], object), np.array(["two", None], object)),
        ({(1, 2): 3}, {(1, 2): 4}),
    ],
)
def test_values_count(one: Any, other: Any) -> None:
    assert Digester().digest(one) == Digester().digest(pickle.loads(pickle.dumps(one)))
    assert Digester().digest(one) != Digester().digest(other)


def test_a_class_without_a_source_counts() -> None:
    def defined(number: int) -> Any:
        scope: dict[str, Any] = {"__name__": "__main__"}  # as in a notebook
        exec(f"class Own:\n    def __call__(self, item):\n        return item * {number}", scope)
        return scope["Own"]()

    assert Digester().digest(defined(1)) == Digester().digest(defined(1))
    assert Digester().digest(defined(1)) != Digester().digest(defined(2))
