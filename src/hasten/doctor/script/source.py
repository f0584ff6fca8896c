"""The calls at a line of a script: whether their arguments follow the device, and cures as diffs of their lines."""

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


def follows_device(site: str, keyword: str) -> bool:
    """Whether the call at a line gives this keyword by an expression that asks for a GPU: `torch.cuda.is_available()`,
    or a variable that was set by one."""
    path, _, line = site.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    values = [each.value for call in _calls(tree, int(line)) for each in call.keywords if each.arg == keyword]
    names = {ast.unparse(value) for value in values}
    sets = (each for each in ast.walk(tree) if isinstance(each, ast.Assign))
    values += [each.value for each in sets if any(ast.unparse(target) in names for target in each.targets)]
    return any("cuda" in ast.unparse(value).lower() for value in values)


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
    for call in _edited_calls(tree, line, edit):
        present = {each.arg: each.value for each in call.keywords}
        if None in present:  # `**options`
            continue
        new = ", ".join(f"{name}={value}" for name, value in edit.keywords if name not in present)
        for name, value in edit.keywords:
            if name in present:
                yield (present[name].lineno, present[name].col_offset), _end(present[name]), value
        ends = [_end(each) for each in call.args] + [_end(each) for each in call.keywords]
        at, comma = (max(ends), ", ") if ends else ((_end(call)[0], _end(call)[1] - 1), "")
        if new:
            yield at, at, comma + new


def _statements(tree: ast.AST, line: int, edit: Edit) -> Iterator[_Change]:
    """Whole lines of statements that are nothing but the call, unless their block has no other."""
    gone = {id(call) for call in _edited_calls(tree, line, edit)}
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            statements = body if isinstance(body, list) else []
            for each in statements:
                if isinstance(each, ast.Expr) and id(each.value) in gone and len(statements) > 1:
                    yield (each.lineno, 0), (_end(each)[0] + 1, 0), ""


def _edited_calls(tree: ast.AST, line: int, edit: Edit) -> list[ast.Call]:
    return [call for call in _calls(tree, line) if ast.unparse(call.func).rpartition(".")[2] in edit.calls]


def _calls(tree: ast.AST, line: int) -> list[ast.Call]:
    """Calls of which a line is a part."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if call.lineno <= line <= _end(call)[0]]


def _end(node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
