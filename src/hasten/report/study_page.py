"""`write_study_page`: the measurements and results of a study as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from hasten.report import words
from hasten.report.template import render, write_page
from hasten.report.view import Key, Slice
from hasten.report.words import Card

_HUES = 16
"""Colours of the page for parts of a bar; they repeat after these."""


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in rows. The first column names the row; `numeric` are the 0-based columns set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "rows as long as the columns"
        assert all(0 <= index < len(self.columns) for index in self.numeric)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar stacked from (name, amount) in their order; amounts that are not above 0 are left out."""

    parts: tuple[tuple[str, float], ...]
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class Section:
    """One titled piece of the page: its text, bar, figure, table, preformatted text and note, where given.

    text: an empty line begins a paragraph. svg: a ready <svg> element of our own making, put in as it is.
    """

    title: str
    text: str = ""
    table: Table | None = None
    bar: Bar | None = None
    svg: str = ""
    note: str = ""
    pre: str = ""
    keys: tuple[Key, ...] = ()
    """The legend of the figure or the slices."""
    slices: tuple[Slice, ...] = ()
    """Pictures of cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    """A part of a bar as the template draws it."""

    color: str
    share: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stack:
    pieces: list[_Piece]
    keys: list[Key]
    describe: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _View:
    section: Section
    id: str
    paragraphs: list[str]
    stack: _Stack | None
    svg: Markup
    framed: bool
    """Whether the figure fits itself to any width; one that does not can be scrolled."""


def write_study_page(
    out: Path,
    *,
    title: str,
    verdict: str,
    cards: tuple[tuple[str, str, str], ...] = (),
    sections: Sequence[Section],
) -> Path:
    """Write the page to the file `out`, replaced in one move, and return it. cards: (label, value, detail) each.

    Raises ValueError if `out` cannot be written.
    """
    html = render(
        "study.html.j2",
        title=title,
        verdict=verdict,
        cards_=[Card(label=label, value=value, detail=detail) for label, value, detail in cards],
        views=[_view(section, f"section-{number}") for number, section in enumerate(sections, start=1)],
    )
    try:
        return write_page(html, Path(out))
    except OSError as error:
        raise ValueError(f"{out}: cannot be written ({error.strerror or error}); name another file") from None


def _view(section: Section, id_: str) -> _View:
    return _View(
        section=section,
        id=id_,
        paragraphs=[part.strip() for part in section.text.split("\n\n") if part.strip()],
        stack=_stack(section.bar) if section.bar is not None else None,
        svg=Markup(section.svg),
        framed='class="figure"' in section.svg,
    )


def _stack(bar: Bar) -> _Stack | None:
    parts = [(name, float(amount)) for name, amount in bar.parts if math.isfinite(amount) and amount > 0]
    total = sum(amount for _, amount in parts)
    if not parts:
        return None
    pieces = [
        _Piece(color=f"--c{index % _HUES + 1}", share=f"{100 * amount / total:.3f}")
        for index, (_, amount) in enumerate(parts)
    ]
    keys = [
        Key(name=name, color=piece.color, detail=f"{_amount(amount, bar.unit)} ({words.share(amount / total)})")
        for (name, amount), piece in zip(parts, pieces, strict=True)
    ]
    shares = ", ".join(f"{name} {words.share(amount / total)}" for name, amount in parts)
    return _Stack(pieces=pieces, keys=keys, describe=f"{_amount(total, bar.unit)} in all: {shares}")


def _amount(value: float, unit: str) -> str:
    return words.short_duration(value) if unit == "s" else f"{words.number(value)}{words.NBSP}{unit}"
