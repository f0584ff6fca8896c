"""A cure as a diff of the user's own lines, where it is an argument of a call or a call that goes."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path

from hasten.doctor.finding import Edit


def diff_of(where: str, edit: Edit) -> tuple[str, ...]:
    """Lines of a unified diff without its headers, of the file and line `where` ("train.py:31").

    Empty where it is not certain: no such call there, arguments in `**options`, a statement that its block needs.
    """
    path, _, line = where.rpartition(":")
    try:
        before = Path(path).read_bytes()
        after = _edited(before, int(line), edit)
        ast.parse(after)
    except (OSError, SyntaxError, ValueError):
        return ()
    old, new = (text.decode("utf-8", "replace").splitlines() for text in (before, after))
    lines = tuple(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))


def _edited(source: bytes, line: int, edit: Edit) -> bytes:
    """The source with the edit made at each fitting call of a line."""
    tree, starts = ast.parse(source), [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    changes = _arguments(tree, line, edit) if edit.keywords else _statements(tree, line, edit)
    # From the end on, so that the places before stay where they are.
    for (first, column), (last, end), text in sorted(changes, reverse=True):
        source = source[: starts[first - 1] + column] + text.encode() + source[starts[last - 1] + end :]
    return source


_Change = tuple[tuple[int, int], tuple[int, int], str]
"""Line and column (of bytes) of begin and end, and what comes there."""


def _arguments(tree: ast.AST, line: int, edit: Edit) -> Iterator[_Change]:
    for call in _calls(tree, line, edit):
        if any(given.arg is None for given in call.keywords):
            continue
        given = {each.arg: each.value for each in call.keywords}
        new = ", ".join(f"{name}={value}" for name, value in edit.keywords if name not in given)
        for name, value in edit.keywords:
            if name in given:
                yield _begin(given[name]), _end(given[name]), value
        if new and (call.args or call.keywords):
            at = max([_end(each) for each in call.args] + [_end(each) for each in call.keywords])
            yield at, at, f", {new}"
        elif new:
            at = (_end(call)[0], _end(call)[1] - 1)
            yield at, at, new


def _statements(tree: ast.AST, line: int, edit: Edit) -> Iterator[_Change]:
    """Whole lines of statements that are nothing but the call, unless their block has no other."""
    gone = {id(call) for call in _calls(tree, line, edit)}
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            statements = body if isinstance(body, list) else []
            for each in statements:
                if isinstance(each, ast.Expr) and id(each.value) in gone and len(statements) > 1:
                    yield (each.lineno, 0), (_end(each)[0] + 1, 0), ""


def _calls(tree: ast.AST, line: int, edit: Edit) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= line <= _end(node)[0]:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in edit.calls:
                yield node


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
