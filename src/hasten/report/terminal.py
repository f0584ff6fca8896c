"""Tables as text for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from hasten.report.model import Table


def print_table(table: Table, *, title: str = "") -> None:
    """Print the table with a space after the last row of each first cell. A narrow terminal wraps whole lines."""
    drawn = RichTable(title=title or None, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, name in enumerate(table.columns):
        justify = "right" if index in table.numeric else "left"
        drawn.add_column(name.replace(" ", "\n", 1), justify=justify, no_wrap=True, vertical="bottom")  # type: ignore[arg-type]
    for row, following in zip(table.rows, (*table.rows[1:], ("",)), strict=True):
        drawn.add_row(*row, end_section=0 not in table.numeric and row[0] != following[0])
    console = Console()
    Console(width=max(console.width, Console(width=10_000).measure(drawn).maximum)).print(drawn)


def aligned(table: Table) -> list[str]:
    """The table as plain lines, its columns below their names."""
    rows = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if index in table.numeric else "<" for index in range(len(table.columns))]
    cells = ([f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]
