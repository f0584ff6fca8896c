"""Docstrings of modules, classes, functions and attributes can be understood on their own: they name their subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src" / "hasten").rglob("*.py"))
OPENINGS = (
    "And", "As", "At", "By", "From", "In place of", "In the place of", "Instead of", "Its", "Of", "On", "That",
    "The same", "Theirs", "Those", "Until", "With",
)  # fmt: skip
"""Openings that leave the noun out, as in "Of B samples."; those that also have proper uses are absent."""
LEAVES_OUT = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, and of each literal after an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            if (first := literal(body[0]) if body else None) is not None:
                yield body[0].lineno, first
            for before, after in pairwise(body):
                if isinstance(before, ast.Assign | ast.AnnAssign) and (text := literal(after)) is not None:
                    yield after.lineno, text


def literal(node: ast.stmt) -> str | None:
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value.strip() if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def test_docstrings_name_their_subject() -> None:
    unclear = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in SOURCES
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if LEAVES_OUT.match(text)
    ]
    assert SOURCES
    assert not unclear, "begin with what it is, such as `Shape of ...`:\n" + "\n".join(unclear)


@pytest.mark.parametrize(
    "text", ["Of B samples.", "By rank.", "As `train`, but faster.", "The same, later.", "Its size."]
)
def test_openings_without_a_noun_are_found(text: str) -> None:
    assert LEAVES_OUT.match(text)


@pytest.mark.parametrize(
    "text", ["Official name.", "Bytes of a file.", "Ask for it.", "Assets of a bundle.", "The samples."]
)
def test_other_openings_pass(text: str) -> None:
    assert not LEAVES_OUT.match(text)
