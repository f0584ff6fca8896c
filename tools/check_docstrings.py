"""Fail where a docstring leaves its subject or its shapes out: `python tools/check_docstrings.py`.

Docstrings of modules, classes, functions and attributes name their subject, so that they can be understood on their
own. Docstrings of public functions, methods and fields with tensors or arrays give their shapes. An override without a
docstring is explained by the method that it overrides, or by that of a protocol with the same name and parameters. The
docstring of a class also explains its fields and its `forward`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "hasten"
SOURCES = sorted(ROOT.rglob("*.py"))
EXEMPT_FOLDERS = {"doctor", "recipes", "report", "scaling"}
"""Folders without shapes of tensors."""
OPENINGS = (
    "And", "As", "At", "By", "From", "In place of", "In the place of", "Instead of", "Its", "Of", "On", "That",
    "The same", "Theirs", "Those", "Until", "With",
)  # fmt: skip
"""Openings that leave the noun out, as in "Of B samples."; those that also have proper uses are absent."""
LEAVES_OUT = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")


ARRAYS = re.compile(r"\b(?:Tensor|ndarray|NDArray)\b")
SHAPE = re.compile(
    r"""(?<![\w\]])\(\)                                 # (), but no call
    | \([^()]*(?:\b[A-Z]\b|\.\.\.)[^()]*,[^()]*\)       # (B, C, ...)
    | \([^()]*,[^()]*(?:\b[A-Z]\b|\.\.\.)[^()]*\)       # (height, W), (..., 3)
    | \(\d+,[^()]*\) | \([a-z_]+,\)                     # (3, 3), (n,)
    | \((?:height|rows|side|short|[a-z])\b,[^()]*\)     # (d, h, w)
    | \b(?:any|one|equal|same)\ shapes?\b | \b[Ss]hapes?\ of\b | \bof\ `shape`
    """,
    re.VERBOSE,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[str, ast.Module]:
    """Every source by its path below src."""
    return {f"hasten/{path.relative_to(ROOT)}": ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    by_name: dict[str, list[ast.ClassDef]] = {}
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name, []).append(node)
    return by_name


@cache
def of_protocols() -> dict[tuple[str, tuple[str, ...]], str]:
    """Docstrings of the methods of protocols, by name and parameters."""
    protocols = (one for same_name in classes().values() for one in same_name if "Protocol" in bases(one))
    return {(each.name, parameters(each)): doc(each) for one in protocols for each in methods(one)}


def bases(node: ast.ClassDef) -> list[str]:
    return [re.sub(r"\[.*", "", ast.unparse(base)).rpartition(".")[2] for base in node.bases]


def methods(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, Function)]


def parameters(function: Function) -> tuple[str, ...]:
    given = function.args
    return tuple(each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def doc(node: Function | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def inherited(node: ast.ClassDef, name: str) -> str:
    """Docstring of the method that a class overrides, of the nearest base that has one."""
    for base in bases(node):
        for one in classes().get(base, []):
            text = next((doc(each) for each in methods(one) if each.name == name), "")
            if one is not node and (text := text or inherited(one, name)):
                return text
    return ""


def has_arrays(*annotations: ast.expr | None) -> bool:
    return any(ARRAYS.search(ast.unparse(each)) for each in annotations if each is not None)


def takes_arrays(function: Function) -> bool:
    given = function.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return has_arrays(function.returns, *(each.annotation for each in every if each is not None))


def explained(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and explanation of everything public in a module that has tensors or arrays."""
    for node in tree.body:
        if isinstance(node, Function) and takes_arrays(node):
            yield node.name, doc(node)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from explained_in(node)


def explained_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in methods(node):
        if takes_arrays(each):
            text = doc(each) or inherited(node, each.name) or of_protocols().get((each.name, parameters(each)), "")
            yield f"{node.name}.{each.name}", f"{text}\n{doc(node)}" if each.name == "forward" else text
    for field, after in pairwise([*node.body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and has_arrays(field.annotation):
            yield f"{node.name}.{ast.unparse(field.target)}", f"{literal(after) or ''}\n{doc(node)}"


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


def unclear() -> Iterator[str]:
    """One line per docstring that leaves its subject out, as "path:line: ..."."""
    for path, tree in trees().items():
        for line, text in texts(tree):
            if LEAVES_OUT.match(text):
                yield f"src/{path}:{line}: begin with what it is, such as `Shape of ...`: {text.splitlines()[0]}"


def without_shapes() -> Iterator[str]:
    """One line per docstring that gives no shape."""
    for path, tree in trees().items():
        if path.split("/")[1] not in EXEMPT_FOLDERS:
            for name, text in explained(tree):
                if not name.rpartition(".")[2].startswith("_") and not SHAPE.search(text):
                    yield f"src/{path}: {name}: give the shape, such as `(B, C, D, H, W)`, `()` or `of any shape`"


def main() -> int:
    results = [*unclear(), *without_shapes()]
    print("\n".join(results) if results else "docstrings: every subject and every shape is named")
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main())
