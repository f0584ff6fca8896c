"""Fail where a source file or a function has outgrown what one reader can hold: `python tools/check_size.py [ROOT]`."""

from __future__ import annotations

import ast
import sys
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


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A function is not too long for what explains it."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    results = list(too_long(root))
    print(
        "\n".join(results)
        if results
        else f"sizes: every file within {MAX_FILE} lines, every function within {MAX_FUNCTION}"
    )
    return 1 if results else 0


if __name__ == "__main__":
    sys.exit(main())
