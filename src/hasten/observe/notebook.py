"""What a notebook shows: a run's progress in its cell, and results as tables with a short text."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hasten.observe.progress import SHOWN, Progress
from hasten.observe.values import mapping, number

_LINES = 12
"""Lines of progress that a cell keeps."""


def cell_progress() -> Progress | None:
    """Progress in the output of a notebook's cell; None outside of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return None if getattr(shell, "kernel", None) is None else Progress(_Cell())


class _Cell(io.StringIO):
    """A stream whose last lines are one output of the cell, so that hours of progress do not fill the notebook."""

    _shown: Any = None

    def flush(self) -> None:
        from IPython.display import display  # imported by the kernel itself

        lines = self.getvalue().splitlines()[-_LINES:]
        self.seek(0)
        self.truncate()
        self.write("".join(f"{line}\n" for line in lines))
        content = {"text/plain": "\n".join(lines)}
        if self._shown is None:
            self._shown = display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str) -> str:
    """A table as HTML; every text is escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<p><b>{escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Summary(dict[str, Any]):
    """The content of summary.json."""

    def _text(self) -> str:
        best, target = mapping(self.get("best")), mapping(self.get("target"))
        metric = str(best.get("metric") or target.get("metric") or "").removeprefix("mean_")
        score = number(best.get("value"))
        found = "no validation" if score is None else f"{SHOWN.get(metric, metric)} {score:.4f} at step {best['step']}"
        seconds = (number(mapping(self.get("seconds")).get("total")) or 0) + (number(self.get("earlier_seconds")) or 0)
        return f"{self.get('name')}: {self.get('status')}, {found}, {self.get('steps')} steps in {seconds:.1f} s"

    def __repr__(self) -> str:
        return f"<Summary of {self._text()}>"

    def _repr_html_(self) -> str:
        spent = [(part.replace("_", " "), f"{value:.1f} s") for part, value in mapping(self.get("seconds")).items()]
        each_on = mapping(self.get("accelerators")).items()
        switches = [(name, f"{'on' if each['on'] else 'off'}: {each['reason']}") for name, each in each_on]
        return html_table(("", ""), [*spent, *switches], title=self._text())


class Plan(dict[str, Any]):
    """The content of plan.json."""

    def _text(self) -> str:
        facts = mapping(self.get("fingerprint"))
        return f"{facts.get('name')}: {facts.get('num_cases')} cases, {len(mapping(self.get('decisions')))} decisions"

    def __repr__(self) -> str:
        return f"<Plan of {self._text()}>"

    def _repr_html_(self) -> str:
        rows = ((name, each["value"], each["reason"]) for name, each in mapping(self.get("decisions")).items())
        return html_table(("Setting", "Value", "Why"), rows, title=self._text())


class PagePath(type(Path())):  # type: ignore[misc]
    """The path of an HTML page, which a notebook shows."""

    def _repr_html_(self) -> str:
        page = escape(self.read_text(encoding="utf-8"))
        return f'<p>{escape(str(self))}</p><iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'
