"""Tables, charts, notes and pages: what reports and studies show, for `html` and a terminal.

Texts are escaped by the renderers; Markup, such as an `<svg>` of `figures`, is put in as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from hasten.observe.progress import terminal_width
from hasten.observe.values import aligned

if TYPE_CHECKING:
    from hasten.evaluation.examples import Example


class Card(NamedTuple):
    """One key figure."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend. `color` is a CSS variable of the page, such as `--c1`, or a hexadecimal colour."""

    name: str
    color: str
    detail: str = ""
    dashed: bool = False


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
class Chart:
    """A drawing with its title and legend. An empty `svg` leaves the title and the note, which says why."""

    svg: str
    title: str = ""
    keys: tuple[Key, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar stacked from (name, amount) in their order; amounts that are not above 0 are left out.

    colors: CSS variables of all parts; by default each part gets the next hue.
    """

    parts: tuple[tuple[str, float], ...]
    unit: str = "s"
    colors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A framed list of sentences that a reader must not miss."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One titled piece of a page; what is empty is left out, and the rest is shown in the order of the fields."""

    title: str
    text: str = ""
    """An empty line begins a paragraph."""
    table: Table | None = None
    bar: Bar | None = None
    note: str = ""
    pre: str = ""
    """Preformatted text."""
    warning: Note | None = None
    cards: Sequence[tuple[str, str, str]] = ()
    charts: tuple[Chart, ...] = ()
    """Several are drawn side by side where the page is wide enough."""
    slices: tuple[Example, ...] = ()
    """Each is drawn as its picture, and that with three overlays."""
    keys: tuple[Key, ...] = ()
    """The legend that the charts, or the slices, have in common."""
    folded: str = ""
    """What the reader clicks on to see the table and the preformatted text; empty shows them at once."""
    sections: tuple[Section, ...] = ()
    badge: str = ""
    """Markup from `badge`, shown behind the title."""
    id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page with its verdict in one sentence."""

    title: str
    verdict: str
    cards: Sequence[tuple[str, str, str]] = ()
    sections: tuple[Section, ...]
    badge: str = ""
    kind: str = ""
    """What the browser's tab says behind the title."""


def badge(text: str, tone: str = "") -> Markup:
    """A word in a coloured frame. tone: `good`, `bad` or neither."""
    return Markup('<span class="badge {}">{}</span>').format(tone, text)


def table_lines(table: Table) -> list[str]:
    """The table as plain lines, its columns below their names, no wider than the terminal."""
    return aligned((table.columns, *table.rows), table.numeric, terminal_width(sys.stdout))
