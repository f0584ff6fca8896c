"""Findings, and where a step's time goes, as both doctors show them in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.report.model import Bar, Section, Table
from hasten.report.words import NBSP
from hasten.study.finding import Finding, ms
from hasten.study.time_split import PARTS, Diagnosis, Split


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding with its place, what it costs now, and its cure."""
    lines = []
    for number, group in enumerate(_grouped(findings), start=1):
        finding = group[0]
        mark = f"{number:2d}." if finding.level == "finding" else "   note:"
        where = ", ".join(dict.fromkeys(one.where for one in group if one.where))
        lines.append(f"{mark} {where + ': ' if where else ''}{finding.title}  [{finding.name}]")
        for evidence in dict.fromkeys(one.evidence for one in group):
            now = "; ".join(filter(None, (_amounts(finding), evidence)))
            lines += [f"      now   {now}"] if now else []
        lines.append(f"      cure  {finding.cure}")
    return lines


def _amounts(finding: Finding) -> str:
    """The cost and the predicted gain; empty for a note."""
    if finding.level == "note":
        return ""
    cost = "" if finding.cost_s is None else f"costs {ms(finding.cost_s)} a step"
    gain = f"predicted {finding.gain:.2f} times as fast without it" if (finding.gain or 0.0) >= 1.005 else ""
    return ", ".join(filter(None, (cost, gain)))


def _grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group notes of one name and cure at the place of the first; each finding stays by itself, with its cost."""
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        key: object = number if finding.level == "finding" else (finding.name, finding.cure)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def findings_section(findings: Sequence[Finding], none: str) -> Section:
    """none: the text where there are no findings."""
    if not findings:
        return Section("Findings", none)
    rows = tuple(_row(group) for group in _grouped(findings))
    columns = ("Where", "What", "Cure", "Cost a step", "Predicted", "Evidence")
    return Section("Findings", "Largest predicted gain first.", table=Table(columns, rows, (3, 4)))


def _row(group: Sequence[Finding]) -> tuple[str, ...]:
    finding, lines = group[0], "\n".join(dict.fromkeys(one.where for one in group if one.where))
    note = "" if finding.level == "finding" else "Note: "
    gain = "" if finding.gain is None or note else f"{finding.gain:.2f}×"
    cost = "" if finding.cost_s is None or note else whole(ms(finding.cost_s))
    evidence = "\n".join(dict.fromkeys(one.evidence for one in group if one.evidence))
    return (lines, note + finding.title, finding.cure, cost, gain, evidence)


def split_section(split: Split, diagnosis: Diagnosis, note: str = "") -> Section:
    """The time of a step, as a bar and a table of its parts."""
    parts = [(name, seconds) for name, seconds in split.parts.items() if seconds > 0.002 * split.step_s]
    rows = tuple((PARTS[name], whole(ms(seconds)), f"{seconds / split.step_s:.1%}") for name, seconds in parts)
    bar = Bar(tuple((PARTS[name], 1e3 * seconds) for name, seconds in parts), unit="ms")
    text, table = "\n\n".join(diagnosis.evidence), Table(("Part", "a step", "share"), rows, (1, 2))
    return Section("Where a step's time goes", text, table=table, bar=bar, note=note)


def whole(text: str) -> str:
    """The text without a line break between number and unit."""
    return text.replace(" ", NBSP)
