"""Imports within the repository: each name exists, also where no test calls the function; no modules form a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = {"hasten": ROOT / "src", "benchmarks": ROOT, "tests": ROOT, "tools": ROOT}


@cache
def file_of(module: str) -> Path | None:
    path = OURS[module.partition(".")[0]].joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py", path) if each.exists()), None)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def names_in(file: Path) -> set[str] | None:
    """What a module defines or imports outside of its functions; None if its attributes are made at run time."""
    names: set[str] = set()
    pending: list[ast.AST] = list(parsed(file).body) if file.suffix else []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        else:
            names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            pending += [each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
    return None if "__getattr__" in names else names


def missing(file: Path) -> Iterator[str]:
    for node in ast.walk(parsed(file)):
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


def test_every_import_of_ours_exists() -> None:
    folders = ("src", "benchmarks", "tests", "tools", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 1000
    assert [line for file in files for line in missing(file)] == []


def imported_by(node: ast.AST, source: str) -> Iterator[Path]:
    """Files of `source` that code imports, functions included; not what only a type checker imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        names = [alias.name for alias in child.names] if isinstance(child, ast.Import) else []
        if isinstance(child, ast.ImportFrom) and child.module and not child.level:
            inner = (f"{child.module}.{alias.name}" for alias in child.names)
            names = [name if is_module(name) else child.module for name in inner if name.startswith(source)]
        yield from (file for name in names if name.startswith(source) and (file := file_of(name)) is not None)
        yield from imported_by(child, source)


def is_module(name: str) -> bool:
    file = file_of(name)
    return file is not None and file.suffix == ".py"


def test_no_modules_form_a_circle() -> None:
    files = list((ROOT / "src").rglob("*.py"))
    graph = {file: set(imported_by(ast.parse(file.read_text(encoding="utf-8")), "hasten.")) - {file} for file in files}
    assert sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(str(file.relative_to(ROOT)) for file in error.args[1])) from None
