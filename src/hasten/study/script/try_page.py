"""What was tried, as a table: on the page, in Markdown, in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hasten.study.script.try_cures import Tried
from hasten.study.words import ms

if TYPE_CHECKING:
    from hasten.report.model import Section

COLUMNS = ("Cure", "For", "Step without", "Step with", "Gain", "Outcome", "Losses")
_NUMERIC = (2, 3, 4)


def rows(tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    """One row of words for each, in the order they were tried."""
    return [
        (
            ", ".join(one.cures),
            ", ".join(one.findings),
            _step(one.base_s),
            _step(one.cured_s),
            "" if one.gain is None else f"{one.gain:.2f} ({one.low:.2f} to {one.high:.2f})",
            f"{one.outcome}: {one.why}" if one.why else one.outcome,
            one.agreement,
        )
        for one in tried
    ]


def _step(seconds: Sequence[float]) -> str:
    """The middle run."""
    if not seconds:
        return ""
    return ms(sorted(seconds)[len(seconds) // 2])


def markdown(tried: Sequence[Tried]) -> str:
    """A table in Markdown; one line of words where nothing was tried."""
    if not tried:
        return "None of the findings has a cure that can be put in from outside.\n"
    rule = ["---:" if number in _NUMERIC else "---" for number in range(len(COLUMNS))]
    lines = [COLUMNS, rule, *rows(tried)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in lines)


def plain(tried: Sequence[Tried]) -> str:
    """The same in columns of text."""
    if not tried:
        return "None of the findings has a cure that can be put in from outside.\n"
    lines = [COLUMNS, *rows(tried)]
    widths = [max(len(row[number]) for row in lines) for number in range(len(COLUMNS))]
    out = []
    for row in lines:
        cells = [
            cell.rjust(widths[number]) if number in _NUMERIC else cell.ljust(widths[number])
            for number, cell in enumerate(row)
        ]
        out.append("  ".join(cells).rstrip() + "\n")
    return "".join(out)


def section(tried: Sequence[Tried]) -> Section:
    """The section of a page about the cures that were tried."""
    from hasten.report.model import Section, Table

    if not tried:
        return Section("Cures tried", text=markdown(tried).strip())
    runs = max(len(one.base_s) for one in tried)
    return Section(
        "Cures tried",
        text=f"Runs with and without each cure were interleaved, {runs} times each. A cure is faster only if "
        "each run with it was faster than every run without.",
        table=Table(COLUMNS, tuple(rows(tried)), numeric=_NUMERIC),
        note="Gain: mean step without over mean step with it, and in brackets its worst and best pair of runs. "
        "Losses: those of the first steps against the first run's.",
    )
