"""The result of a search, and its files: tuned.yaml, tune.json, tune.html."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.config.load import dump_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import write_json, write_text
from hasten.report.html import write_page
from hasten.report.model import Page, Section, Table
from hasten.study.finding import ms
from hasten.study.folder import writing_to
from hasten.study.tune.search import ArmResult, SearchRow
from hasten.study.tune.setting import Change, changes_text, value_of

TUNED_YAML, TUNE_JSON, TUNE_HTML = "tuned.yaml", "tune.json", "tune.html"
_SEEMS = 1.03
"""Gain from which an unclear comparison is reported as promising."""
_ORDER = ("won", "same", "lost", "unclear", "disagreed", "failed", "not tried")
_UNITS = {"step": "step", "run": "step with its batch", "validate": "validation", "update": "update"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The result of a search."""

    config: RunConfig
    """The run as in tuned.yaml."""
    out: Path
    changes: tuple[Change, ...]
    """Fields of the run's YAML that are not as they were; none if nothing was clearly faster."""
    rows: tuple[SearchRow, ...]
    """Everything that was tried, or not, in order."""
    gain: ArmResult | None
    """Gain of all changes together on the run's steps; None if nothing won."""
    suggestions: tuple[str, ...]
    """Winners that are not taken, or have no field in a run's YAML."""
    notes: tuple[str, ...]
    """Caveats."""
    about: dict[str, Any]
    """The machine, network and shape that it holds for."""
    busy: bool = False
    """Whether other programs kept the machine too busy for a conclusion."""
    seconds: float = 0.0
    budget: float = 0.0

    @property
    def verdict(self) -> str:
        """One sentence."""
        gain = self.gain
        if gain is not None and gain.gain is not None and gain.low is not None and gain.high is not None:
            return f"The run is {gain.gain:.2f} times as fast as it was ({gain.low:.2f} to {gain.high:.2f})."
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
        unclear = [(row, row.measured) for row in self.rows if row.verdict == "unclear" and row.measured is not None]
        row, best = max(unclear, key=lambda pair: pair[1].gain or 0.0, default=(None, None))
        if row is None or best is None or (best.gain or 0.0) <= _SEEMS:
            return ""
        ends = f" ({best.low:.2f} to {best.high:.2f})" if best.low and best.high else ""
        return f" Most promising, and not proven: {changes_text(row.changes)}, {best.gain:.2f} times as fast{ends}."

    def lines(self) -> list[str]:
        """Lines for a terminal: the verdict, what changed, what else won, and the notes."""
        return [
            self.verdict,
            *(f"  {change}" for change in self.changes),
            *(f"also: {text}" for text in self.suggestions),
            *(f"note: {text}" for text in self.notes),
        ]


def write_tuned(tuned: Tuned) -> None:
    """Raises ValueError if the folder can't be written to."""
    with writing_to(tuned.out):
        write_text(tuned.out / TUNED_YAML, dump_run(tuned.config))
        write_json(tuned.out / TUNE_JSON, as_json(tuned))
    _write_page(tuned)


def as_json(tuned: Tuned) -> dict[str, Any]:
    names = ("verdict", "busy", "seconds", "budget", "gain", "changes", "suggestions", "notes", "about")
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
    return {**{name: getattr(tuned, name) for name in names}, "rows": rows}


def _write_page(tuned: Tuned) -> None:
    counts = {verdict: sum(row.verdict == verdict for row in tuned.rows) for verdict in _ORDER}
    other_verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count and verdict != "won")
    gain = tuned.gain.gain if tuned.gain is not None and tuned.gain.gain is not None else 1.0
    compared = str(sum(row.measured is not None for row in tuned.rows))
    cards = (
        ("Speed", f"{gain:.2f} ×", "against the run as it was given"),
        ("Changed", str(len(tuned.changes)), "fields of the run's YAML"),
        ("Compared", compared, f"{counts['won']} won, {other_verdicts}"),
        ("Time", f"{tuned.seconds:.0f} s", f"of {tuned.budget:.0f} s"),
    )
    changes = tuple((change.field, value_of(change.before), value_of(change.after)) for change in tuned.changes)
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
    stages = dict.fromkeys(row.stage for row in tuned.rows if row.measured is not None)
    sections += [_section(stage, [row for row in tuned.rows if row.stage == stage]) for stage in stages]
    late = [row for row in tuned.rows if row.stage not in stages]
    if late:
        settings: dict[tuple[str, str], list[str]] = {}
        for row in late:
            settings.setdefault((row.stage, row.why), []).append(changes_text(row.changes))
        rows = tuple((stage, "\n".join(texts), why) for (stage, why), texts in settings.items())
        sections.append(Section("Not tried", table=Table(("stage", "settings", "why"), rows)))
    facts = tuple((name, _fact_text(value)) for name, value in tuned.about.items() if value)
    sections.append(Section("What it holds for", table=Table(("", "value"), facts)))
    page = Page(title="Tuning", verdict=tuned.verdict, cards=cards, sections=tuple(sections))
    write_page(page, tuned.out / TUNE_HTML)


def _fact_text(value: Any) -> str:
    """A value in words; of a group of settings, those that are set."""
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} {each}" for name, each in value.items() if each)


def _section(stage: str, rows: list[SearchRow]) -> Section:
    columns = ("tried", "time", "of the base", "gain", "interval", "verdict", "remark")
    table = Table(columns, tuple(_texts(row) for row in rows), numeric=(1, 2, 3, 4))
    text = f"Timed: a {_UNITS[rows[0].kind]}. Each line against the best setting before it."
    return Section(stage[:1].upper() + stage[1:], text=text, table=table)


def _texts(row: SearchRow) -> tuple[str, ...]:
    measured = row.measured
    verdict = f"{row.verdict}, taken" if row.taken else row.verdict
    if measured is None:
        return changes_text(row.changes), "", "", "", "", verdict, row.why
    interval = "" if measured.low is None or measured.high is None else f"{measured.low:.2f}–{measured.high:.2f}"
    gain = "" if measured.gain is None else f"{measured.gain:.2f}"
    times = ("" if seconds is None else ms(seconds) for seconds in (measured.seconds, measured.base_seconds))
    remark = "; ".join(dict.fromkeys(text for text in (row.why, measured.agreement) if text))
    return changes_text(row.changes), *times, gain, interval, verdict, remark
