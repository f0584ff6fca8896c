"""Imports within the repository: each name exists, also where no test calls the function; no modules form a circle."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"hasten": ROOT / "src", "benchmarks": ROOT, "tests": ROOT, "tools": ROOT}


@cache
def file_of(module: str) -> Path | None:
    path = OURS[module.partition(".")[0]].joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py", path) if each.exists()), None)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def statements(node: ast.AST, *, inner: bool = True) -> Iterator[ast.stmt]:
    """Statements at any depth; inner: those of functions and classes too."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            if inner or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from statements(child, inner=inner)


@cache
def names_in(file: Path) -> set[str] | None:
    """What a module defines or imports outside of its functions; None if its attributes are made at run time."""
    names: set[str] = set()
    for node in statements(parsed(file), inner=False) if file.suffix else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        else:
            given = [getattr(node, "target", None), *getattr(node, "targets", ()), *getattr(node, "items", ())]
            names |= {each.id for part in given if part for each in ast.walk(part) if isinstance(each, ast.Name)}
    return None if "__getattr__" in names else names


def missing(file: Path) -> Iterator[str]:
    for node in statements(parsed(file)):
        imported = [(alias.name, None) for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = [(node.module, alias.name) for alias in node.names]
        for module, name in imported:
            if module.partition(".")[0] not in OURS:
                continue
            source = file_of(module)
            if source is None:
                yield f"{file.relative_to(ROOT)}:{node.lineno}: no module {module}"
            elif name is not None and file_of(f"{module}.{name}") is None:
                names = names_in(source)
                if names is not None and name not in names:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}: {module} has no {name}"


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    """Among a million nodes of syntax trees that stay, collections take three quarters of the time."""
    gc.disable()
    yield
    gc.enable()


def test_every_import_of_ours_exists() -> None:
    folders = ("src", "benchmarks", "tests", "tools", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 900
    assert [line for file in files for line in missing(file)] == []


def imported_by(file: Path) -> Iterator[Path]:
    """Files of the package that a file imports, functions included; not what only a type checker imports."""
    checks = (node for node in statements(parsed(file)) if isinstance(node, ast.If))
    unread = {id(each) for node in checks if "TYPE_CHECKING" in ast.unparse(node.test) for each in statements(node)}
    for node in statements(parsed(file)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            names = [name if is_module(name) else node.module for name in inner if name.startswith("hasten.")]
        ours = (name for name in names if name.startswith("hasten.") and id(node) not in unread)
        yield from (path for name in ours if (path := file_of(name)) is not None)


@cache
def is_module(name: str) -> bool:
    file = file_of(name)
    return file is not None and file.suffix == ".py"


def test_no_modules_form_a_circle() -> None:
    files = list((ROOT / "src").rglob("*.py"))
    graph = {file: set(imported_by(file)) - {file} for file in files}
    assert sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(str(file.relative_to(ROOT)) for file in error.args[1])) from None
