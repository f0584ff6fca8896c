"""Finds, in source text, what makes the host wait for the device: reads of a value, and sizes that depend on values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

METHODS = {"item", "cpu", "numpy", "tolist"}
"""Calls without positional arguments on a value: each one waits for the device."""
SEARCHES = {"nonzero", "argwhere", "masked_select"}
"""As a method or a function: the size of the result is only known on the device."""
MASKS = {
    "gt",
    "lt",
    "ge",
    "le",
    "eq",
    "ne",
    "bool",
    "isnan",
    "isinf",
    "isfinite",
    "logical_and",
    "logical_or",
    "logical_not",
}
"""Calls that give a boolean tensor."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def violations(source: str) -> list[tuple[str, int, str]]:
    """(qualified function name, line, what) for each. Code outside functions runs once, at import, and is ignored."""
    return [result for name, function in _functions(ast.parse(source), "") for result in _check(name, function)]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body without annotations, and without inner functions: those are visited themselves."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (Function, ast.ClassDef)):
            continue
        yield node
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        todo += [child for child in ast.iter_child_nodes(node) if child is not annotation]


def _check(name: str, function: Function) -> Iterator[tuple[str, int, str]]:
    nodes = list(_own_nodes(function))
    masks = set(_mask_names(nodes))
    for node in nodes:
        if isinstance(node, ast.Call):
            what = _call(node)
            if what:
                yield name, node.lineno, what
        elif isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(_is_mask(part, masks) for part in parts):
                yield name, node.lineno, "boolean-mask index"


def _call(node: ast.Call) -> str | None:
    called = (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )
    if isinstance(node.func, ast.Attribute) and called in METHODS and not node.args:
        return f".{called}()"
    if called in SEARCHES:
        return called
    if called == "where" and len(node.args) == 1 and not node.keywords:
        return "where with one argument, which is nonzero"
    return None


def _mask_names(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_mask(node.value, set()):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _is_mask(node: ast.AST, masks: set[str]) -> bool:
    """Whether an expression is, as far as its text tells, a boolean tensor."""
    match node:
        case ast.Name(id=name):
            return name in masks or "mask" in name.lower()
        case ast.Attribute(attr=name):
            return "mask" in name.lower()
        case ast.Compare(ops=ops):
            return not any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in ops)
        case ast.UnaryOp(op=ast.Invert() | ast.Not()):
            return True
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor(), right=right):
            return _is_mask(left, masks) or _is_mask(right, masks)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in MASKS
    return False
