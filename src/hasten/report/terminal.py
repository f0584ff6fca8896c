"""Tables as text for a terminal."""

from __future__ import annotations

from hasten.report.model import Table


def print_table(table: Table, *, title: str = "") -> None:
    """Print the table below its title."""
    print("\n".join([*([title, ""] if title else []), *aligned(table)]))


def aligned(table: Table) -> list[str]:
    """The table as plain lines, its columns below their names."""
    rows = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if index in table.numeric else "<" for index in range(len(table.columns))]
    cells = ([f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]
