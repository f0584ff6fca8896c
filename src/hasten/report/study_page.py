"""`write_study_page`: `html.write_page` with the fields of the page as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.report.html import write_page
from hasten.report.model import Bar, Page, Section, Table

__all__ = ["Bar", "Section", "Table", "write_study_page"]


def write_study_page(
    out: Path, *, title: str, verdict: str, cards: tuple[tuple[str, str, str], ...] = (), sections: Sequence[Section]
) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError if it cannot be written."""
    return write_page(Page(title=title, verdict=verdict, cards=cards, sections=tuple(sections)), out)
