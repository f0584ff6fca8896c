"""Fail where a file, a function or a package has outgrown its limit: `python tools/check_size.py [ROOT]`.

A file and a function have at most what one reader can hold. A package has a budget of lines, in pyproject.toml at
`tool.hasten.lines`: what comes in is paid for by what goes. Whoever needs more than a budget raises it in the commit
that spends it, and says there why; whoever deletes lowers it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "benchmarks")
MAX_FILE = 600
MAX_FUNCTION = 80


def too_long(root: Path) -> Iterator[str]:
    """One line per file or function over its limit, as "path:line: ..."."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(root)
            lines = len(text.splitlines())
            if lines > MAX_FILE:
                yield f"{name}:1: {lines} lines (at most {MAX_FILE}); split it by idea"
            for node in ast.walk(ast.parse(text, filename=str(path))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
                    if lines > MAX_FUNCTION:
                        yield f"{name}:{node.lineno}: {node.name} has {lines} lines (at most {MAX_FUNCTION})"


def over_budget(root: Path) -> Iterator[str]:
    """One line per package, or other folder with a budget, that holds more lines than that, or has none."""
    project = root / "pyproject.toml"
    budgets = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["hasten"]["lines"] if project.exists() else {}
    for name, most in budgets.items():
        lines = sum(len(path.read_bytes().splitlines()) for path in (root / name).rglob("*.py"))
        if lines > most:
            yield f"{name}: {lines} lines (at most {most}: pyproject.toml, tool.hasten.lines); remove {lines - most}"
    if budgets:
        for package in sorted((root / "src" / "hasten").glob("*/__init__.py")):
            name = package.parent.relative_to(root).as_posix()
            if name not in budgets:
                yield f"{name}: give it a budget in tool.hasten.lines of pyproject.toml"


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A function is not too long for what explains it."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    results = [*too_long(root), *over_budget(root)]
    fits = f"sizes: every file within {MAX_FILE} lines, functions within {MAX_FUNCTION}, packages in their budgets"
    print("\n".join(results) if results else fits)
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main())
