"""Every line of a shell block that begins with `hasten` would be taken by the command line as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import command_lines, mistake
from tests.docs.reading import blocks, name, pages


@pytest.mark.parametrize("page", pages(), ids=name)
def test_commands_of(page: Path) -> None:
    lines = [(block.line, line) for block in blocks(page) for line in command_lines(block)]
    wrong = {f"{name(page)}:{at}: {line}": problem for at, line in lines if (problem := mistake(line))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hasten train DATA --out runs/a train.steps=10", ""),
        ("hasten train DATA", "--out is missing"),
        ("hasten train DATA --out a --fast", "No such option: --fast"),
        ("hasten fit DATA --out a", "no 'fit'"),
        ("hasten train DATA --out a train.step=10", "train.step"),
        ("hasten train DATA --out a train.steps=ten", "train.steps"),
        ("hasten phantom --out a --cases none", "valid integer"),
        ("hasten scale RUN.yaml --worlds 1,2 --out DIR", ""),
        ("hasten doctor -- python train.py --lr 0.1", ""),
    ],
)
def test_mistakes_are_seen(line: str, says: str) -> None:
    result = mistake(line)
    assert (says in result) if says else result == ""
