"""A run's diagnosis as text and as a page."""

from __future__ import annotations

from pathlib import Path

from hasten.doctor.finding import ms
from hasten.doctor.run.doctor import RunDiagnosis
from hasten.doctor.show import finding_lines, findings_section, split_section
from hasten.doctor.time_split import PARTS
from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section, Table
from hasten.report.words import plain

_NONE = "No setting was found that would make it faster."


def lines(report: RunDiagnosis) -> list[str]:
    """Lines for a terminal: the sentence, the split, then each finding with its evidence and its cure."""
    split = report.split
    output = [report.diagnosis.sentence, ""]
    for name, words in PARTS.items():
        value = split.parts.get(name, 0.0)
        if value >= 0.005 * split.step_s:
            output.append(f"  {value / split.step_s:4.0%}  {ms(value):>9}  {words}")
    output.append(f"        {ms(split.step_s):>9}  a step in all, {split.steps} steps timed")
    output.append("")
    output += [*(finding_lines(report.findings) or [_NONE]), ""]
    return [*output, *(f"note: {note}" for note in report.notes)]


def write_page(report: RunDiagnosis, out: Path, *, source: str) -> Path:
    """The HTML page. source: what was looked at, for its title. Raises ValueError if it can't be written."""
    split = report.split
    best = next((finding for finding in report.findings if finding.gain is not None), None)
    cards = (
        ("Bound by", report.diagnosis.bound, report.diagnosis.measure),
        ("A step", ms(split.step_s), f"{split.steps} timed, all costs spread over the run's steps"),
        ("On one fixed batch", ms(split.fixed_batch_s or 0.0), split.floor_note),
        ("A batch with no step", ms(split.feed_alone_s or 0.0), "the data's ceiling"),
        ("Largest gain", f"{best.gain:.2f}x" if best and best.gain else "none", best.cure if best else "no finding"),
    )
    settings = tuple((name.replace("_", " "), plain(value)) for name, value in report.settings.items())
    spread = "Validation, checkpoints and what is done once are spread over the steps."
    sections = (
        split_section(split, report.diagnosis, spread),
        findings_section(report.findings, _NONE),
        Section("Settings", table=Table(("Setting", "Value"), settings), note=" ".join(report.notes)),
    )
    title = f"Doctor: {source}"
    return write_html(Page(title=title, verdict=report.diagnosis.sentence, cards=cards, sections=sections), out)
