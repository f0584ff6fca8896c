"""What was tried, as a table: on the page and in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hasten.study.script.try_cures import Tried
from hasten.study.words import ms

if TYPE_CHECKING:
    from hasten.report.model import Section

COLUMNS = ("Cure", "For", "Step without", "Step with", "Gain", "Outcome", "Losses")
_NUMERIC = (2, 3, 4)
_NOTHING = "None of the findings has a cure that can be put in from outside."


def rows(tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    """One row of words for each, in the order they were tried."""
    return [
        (
            ", ".join(one.cures),
            ", ".join(one.findings),
            *(ms(sorted(each)[len(each) // 2]) if each else "" for each in (one.base_s, one.cured_s)),
            "" if one.gain is None else f"{one.gain:.2f} ({one.low:.2f} to {one.high:.2f})",
            f"{one.outcome}: {one.why}" if one.why else one.outcome,
            one.agreement,
        )
        for one in tried
    ]


def plain(tried: Sequence[Tried]) -> str:
    """Columns of text; one line of words where nothing was tried."""
    if not tried:
        return f"{_NOTHING}\n"
    lines = [COLUMNS, *rows(tried)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = [">" if number in _NUMERIC else "<" for number in range(len(COLUMNS))]
    cells = [[f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)] for row in lines]
    return "".join("  ".join(row).rstrip() + "\n" for row in cells)


def section(tried: Sequence[Tried]) -> Section:
    """The section of a page about the cures that were tried."""
    from hasten.report.model import Section, Table

    if not tried:
        return Section("Cures tried", text=_NOTHING)
    runs = max(len(one.base_s) for one in tried)
    return Section(
        "Cures tried",
        text=f"Runs with and without each cure were interleaved, {runs} times each. A cure is faster only if "
        "each run with it was faster than every run without.",
        table=Table(COLUMNS, tuple(rows(tried)), numeric=_NUMERIC),
        note="Gain: mean step without over mean step with it, and in brackets its worst and best pair of runs. "
        "Losses: those of the first steps against the first run's.",
    )
