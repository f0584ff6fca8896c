"""Findings, and where a step's time goes, as both doctors show them in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.doctor.finding import Finding, ms
from hasten.doctor.time_split import PARTS, Diagnosis, Split
from hasten.report.model import Bar, Section, Table
from hasten.report.words import NBSP


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding with its place, what it costs now, and its cure."""
    lines, number = [], 0
    for group in _grouped(findings):
        finding = group[0]
        number += finding.level == "finding"
        mark = f"{number:2d}." if finding.level == "finding" else "   note:"
        lines.append(f"{mark} {_place(group)}{finding.title}  [{finding.name}]")
        for evidence in dict.fromkeys(one.evidence for one in group):
            now = "; ".join(filter(None, (_amounts(finding), evidence)))
            lines += [f"      now   {now}"] if now else []
        lines.append(f"      cure  {finding.cure}")
        lines += [f"            {line}" for each in group for line in each.diff]
    return lines


def _place(group: Sequence[Finding]) -> str:
    where = ", ".join(dict.fromkeys(one.where for one in group if one.where))
    return f"{where}: " if where else ""


def _amounts(finding: Finding) -> str:
    """The cost and the predicted gain; empty for a note."""
    if finding.level == "note":
        return ""
    cost = "" if finding.cost_s is None else f"costs {ms(finding.cost_s)} a step"
    gain = finding.gain or 0.0
    faster = f"predicted {gain:.2f} times as fast{_interval(finding)} without it" if gain >= 1.005 else ""
    return ", ".join(filter(None, (cost, faster)))


def _interval(finding: Finding) -> str:
    return f" ({finding.interval[0]:.2f} to {finding.interval[1]:.2f})" if finding.interval else ""


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
    columns = ("What", "Measured", "Cure", "Cost a step", "Predicted")
    rows = tuple(_row(group) for group in _grouped(findings))
    return Section("Findings", "Largest predicted gain first.", table=Table(columns, rows, (3, 4)))


def _row(group: Sequence[Finding]) -> tuple[str, ...]:
    finding = group[0]
    note = "" if finding.level == "finding" else "Note: "
    gain = "" if finding.gain is None or note else f"{finding.gain:.2f}×{_interval(finding)}"
    cost = "" if finding.cost_s is None or note else whole(ms(finding.cost_s))
    cure = "\n".join([finding.cure, *(line for each in group for line in each.diff)])
    evidence = dict.fromkeys(one.evidence for one in group if one.evidence)
    return (_place(group) + note + finding.title, "\n".join(evidence), cure, cost, gain)


def split_section(split: Split, diagnosis: Diagnosis, note: str = "") -> Section:
    """The time of a step, as a bar and a table of its parts; what is small is one of them."""
    parts = {PARTS[name]: seconds for name, seconds in split.parts.items() if seconds > 0.002 * split.step_s}
    rest = split.step_s - sum(parts.values())
    if rest > 0.0005 * split.step_s:
        parts["other"] = rest
    rows = tuple((name, whole(ms(s)), f"{s / split.step_s:.1%}") for name, s in parts.items())
    bar = Bar(tuple((name, 1e3 * seconds) for name, seconds in parts.items()), unit="ms")
    text, table = "\n\n".join(diagnosis.evidence), Table(("Part", "a step", "share"), rows, (1, 2))
    return Section("Where a step's time goes", text, table=table, bar=bar, note=note)


def whole(text: str) -> str:
    """The text without a line break between number and unit."""
    return text.replace(" ", NBSP)
