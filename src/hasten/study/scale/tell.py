"""Writes the results of a scaling study to the terminal and into a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from hasten.study.scale.analyse import Analysis
from hasten.study.scale.page import PAGE, write_page
from hasten.study.scale.table import terminal_table, write_tables


def tell(analysis: Analysis, echo: Callable[[str], None]) -> None:
    """The table and the sentences. The table is never cut: a narrow terminal wraps its lines."""
    table = terminal_table(analysis)
    console = Console()
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(console.width, needed)).print(table)
    for sentence in analysis.verdicts:
        echo(sentence)
    for kind, sentences in (("warning", analysis.warnings), ("note", analysis.notes)):
        for sentence in sentences:
            echo(f"{kind}: {sentence}")


def write(analysis: Analysis, out: Path) -> Path:
    """Write the page, and the figures as JSON and CSV, into the folder `out`; returns the page.

    Raises ValueError if it can't be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_tables(analysis, out)
    except OSError as error:
        raise ValueError(f"--out {out}: can't be written ({error.strerror or error}); name another folder") from None
    return write_page(analysis, out / PAGE)
