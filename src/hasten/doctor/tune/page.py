"""The result of a search, and its files: tuned.yaml, tune.json, tune.html."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.doctor.finding import ms
from hasten.doctor.tune.search import ArmResult, SearchRow, changes_text, value_text
from hasten.observe.folder import writing_to
from hasten.observe.rundir import write_json, write_text
from hasten.report.html import write_page
from hasten.report.model import Page, Section, Table

TUNED_YAML, TUNE_JSON, TUNE_HTML = "tuned.yaml", "tune.json", "tune.html"
_SEEMS = 1.03
"""Gain from which an unclear comparison is reported as promising."""
_UNITS = {"train": "step with its batch", "validate": "validation"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The result of a search."""

    config: RunConfig
    """The run as in tuned.yaml."""
    out: Path
    changes: dict[str, tuple[Any, Any]]
    """Fields of the run's YAML that are not as they were, before and after; none if nothing was clearly faster."""
    rows: tuple[SearchRow, ...]
    """Everything that was tried, or not, in order."""
    gain: ArmResult | None
    """Gain of all changes together on the run's steps; None if nothing won."""
    suggestions: tuple[str, ...]
    """Winners that are not taken."""
    notes: tuple[str, ...]
    """Caveats."""
    about: dict[str, Any]
    """The machine that it holds for."""
    busy: bool = False
    """Whether other programs kept the machine too busy for a conclusion."""
    seconds: float = 0.0
    budget: float = 0.0

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.gain is not None:
            return f"The run is {_gain_text(self.gain)} times as fast as it was."
        if self.busy and not self.changes:
            busy = "No conclusion: this machine was busy with other programs, and the run stays as it was given."
            return f"{busy}{self._promising()}"
        better = [row for row in self.rows if row.taken]
        if better:
            return f"The steps stay as they are; {', '.join(changes_text(row.changes) for row in better)} was better."
        if not any(row.measured for row in self.rows):
            return "Nothing could be measured; tuned.yaml is the run as it was given."
        return f"Nothing was clearly faster than the run as it is.{self._promising()}"

    def _promising(self) -> str:
        """What gained most of what stayed unclear: a partial answer; empty where nothing seemed to gain."""
        unclear = [(row, row.measured) for row in self.rows if row.measured is not None and row.verdict == "unclear"]
        row, best = max(unclear, key=lambda pair: pair[1].gain or 0.0, default=(None, None))
        if row is None or best is None or (best.gain or 0.0) <= _SEEMS:
            return ""
        return f" Most promising, and not proven: {changes_text(row.changes)}, {_gain_text(best)} times as fast."

    def lines(self) -> list[str]:
        """Lines for a terminal: the verdict, what changed, what else won, and the notes."""
        return [
            self.verdict,
            *(f"  {name}: {value_text(old)} -> {value_text(new)}" for name, (old, new) in self.changes.items()),
            *(f"also: {text}" for text in self.suggestions),
            *(f"note: {text}" for text in self.notes),
        ]


def _gain_text(measured: ArmResult) -> str:
    interval = "" if measured.low is None or measured.high is None else f" ({measured.low:.2f} to {measured.high:.2f})"
    return f"{measured.gain or 1.0:.2f}{interval}"


def write_tuned(tuned: Tuned) -> None:
    """Raises ValueError if the folder can't be written to."""
    with writing_to(tuned.out):
        write_text(tuned.out / TUNED_YAML, dump_run(tuned.config))
        write_json(tuned.out / TUNE_JSON, _as_json(tuned))
    write_page(_page(tuned), tuned.out / TUNE_HTML)


def _as_json(tuned: Tuned) -> dict[str, Any]:
    names = ("verdict", "busy", "seconds", "budget", "gain", "suggestions", "notes", "about")
    changes = [{"field": name, "before": old, "after": new} for name, (old, new) in tuned.changes.items()]
    rows = [
        {
            "stage": row.stage,
            "timed": row.kind,
            "setting": row.changes,
            "base": dict(row.base.values),
            **{name: getattr(row, name) for name in ("verdict", "taken", "why", "measured")},
        }
        for row in tuned.rows
    ]
    return {**{name: getattr(tuned, name) for name in names}, "changes": changes, "rows": rows}


def _page(tuned: Tuned) -> Page:
    won = sum(row.verdict == "won" for row in tuned.rows)
    untried = sum(row.measured is None for row in tuned.rows)
    cards = (
        ("Speed", f"{tuned.gain.gain or 1.0:.2f} ×" if tuned.gain else "1.00 ×", "against the run as it was given"),
        ("Changed", str(len(tuned.changes)), "fields of the run's YAML"),
        ("Compared", str(len(tuned.rows) - untried), f"{won} won, {untried} not tried"),
        ("Time", f"{tuned.seconds:.0f} s", f"of {tuned.budget:.0f} s"),
    )
    changes = tuple((name, value_text(old), value_text(new)) for name, (old, new) in tuned.changes.items())
    sections = [
        Section(
            "What changes",
            text="" if changes else "Nothing: tuned.yaml is the run as it was given.",
            table=Table(("field", "was", "is"), changes) if changes else None,
            note="\n".join(tuned.notes),
            pre=f"hasten train {shlex.quote(str(tuned.out / TUNED_YAML))} --out FOLDER",
        )
    ]
    if tuned.suggestions:
        sections.append(Section("What else won", text="\n\n".join(tuned.suggestions)))
    for stage in dict.fromkeys(row.stage for row in tuned.rows):
        rows = [row for row in tuned.rows if row.stage == stage]
        columns = ("tried", "time", "of the base", "gain", "verdict", "remark")
        table = Table(columns, tuple(_texts(row) for row in rows), numeric=(1, 2, 3))
        text = f"Timed: a {_UNITS[rows[0].kind]}. Each line against the best setting before it."
        sections.append(Section(stage[:1].upper() + stage[1:], text=text, table=table))
    facts = tuple((name, str(value)) for name, value in tuned.about.items())
    sections.append(Section("What it holds for", table=Table(("", "value"), facts)))
    return Page(title="Tuning", verdict=tuned.verdict, cards=cards, sections=tuple(sections))


def _texts(row: SearchRow) -> tuple[str, ...]:
    measured, verdict = row.measured, f"{row.verdict}, taken" if row.taken else row.verdict
    if measured is None:
        return changes_text(row.changes), "", "", "", verdict, row.why
    gain = "" if measured.gain is None else _gain_text(measured)
    times = ("" if seconds is None else ms(seconds) for seconds in (measured.seconds, measured.base_seconds))
    remark = "; ".join(dict.fromkeys(text for text in (row.why, measured.agreement) if text))
    return changes_text(row.changes), *times, gain, verdict, remark
