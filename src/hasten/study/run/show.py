"""A run's diagnosis as text and as a page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hasten.report.study_page import Bar, Section, Table, write_study_page
from hasten.study.finding import Finding
from hasten.study.run.doctor import RunDiagnosis
from hasten.study.split import PARTS
from hasten.study.words import ms


def lines(found: RunDiagnosis) -> list[str]:
    """For a terminal: the sentence, the split, then each finding with its evidence and its cure."""
    split = found.split
    told = [found.diagnosis.sentence, ""]
    for name, words in PARTS.items():
        value = split.parts.get(name, 0.0)
        if value >= 0.005 * split.step_s:
            told.append(f"  {value / split.step_s:4.0%}  {ms(value):>9}  {words}")
    told.append(f"        {ms(split.step_s):>9}  a step in all, {split.steps} steps timed")
    told.append("")
    told += _findings(found.findings)
    return [*told, *(f"note: {note}" for note in found.notes)]


def _findings(findings: Iterable[Finding]) -> list[str]:
    told: list[str] = []
    for number, finding in enumerate(findings, start=1):
        gain = f", about {finding.gain:.2f} times as fast" if finding.gain is not None else ""
        told.append(f"{number}. {finding.title}{f' ({finding.where})' if finding.where else ''}{gain}")
        told.append(f"   {finding.evidence}")
        told.append(f"   -> {finding.cure}")
    return [*told, ""] if told else ["No setting was found that would make it faster.", ""]


def write_page(found: RunDiagnosis, out: Path, *, source: str) -> Path:
    """The HTML page. source: what was looked at, for its title. Raises ValueError if it can't be written."""
    split = found.split
    best = next((finding for finding in found.findings if finding.gain is not None), None)
    cards = (
        ("Bound by", found.diagnosis.bound, f"{split.share(found.diagnosis.bound):.0%} of the time"
         if found.diagnosis.bound not in ("compute", "memory") else "the step itself"),
        ("A step", ms(split.step_s), f"{split.steps} timed, all costs spread over the run's steps"),
        ("On one fixed batch", ms(split.fixed_batch_s or 0.0), "the compute floor"),
        ("A batch with no step", ms(split.feed_alone_s or 0.0), "the data's ceiling"),
        ("Largest gain", f"{best.gain:.2f}x" if best and best.gain else "none", best.cure if best else "no finding"),
    )  # fmt: skip
    named = tuple((PARTS[name], 1e3 * value) for name, value in split.parts.items() if value > 0.002 * split.step_s)
    settings = tuple((name, str(value)) for name, value in found.settings.items())
    sections = [
        Section("Where a step's time goes", text=_sentence(found.diagnosis.evidence[2:]), bar=Bar(named, "ms"),
                table=_parts(found), note="Validation, checkpoints and what is done once are spread over the steps."),
        Section("What to change", text="" if found.findings else "No setting was found that would make it faster.",
                table=_table(found.findings) if found.findings else None),
        Section("Experiments", table=_experiments(found)),
        Section("Settings", table=Table(("Setting", "Value"), settings),
                note=" ".join(found.notes)),
    ]  # fmt: skip
    title = f"Doctor: {source}"
    return write_study_page(out, title=title, verdict=found.diagnosis.sentence, cards=cards, sections=sections)


def _sentence(evidence: Iterable[str]) -> str:
    told = "; ".join(evidence)
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def _whole(text: str) -> str:
    """A number that is not parted from its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _parts(found: RunDiagnosis) -> Table:
    split = found.split
    rows = tuple(
        (PARTS[name], _whole(ms(value)), f"{value / split.step_s:.1%}")
        for name, value in split.parts.items()
        if value >= 0.0005 * split.step_s
    )
    return Table(("Part", "a step", "share"), rows, (1, 2))


def _table(findings: Iterable[Finding]) -> Table:
    rows = tuple(
        (
            f"{finding.title} ({finding.where})" if finding.where else finding.title,
            finding.cure,
            finding.evidence,
            _whole(ms(finding.cost_s)) if finding.cost_s is not None else "",
            f"{finding.gain:.2f}x" if finding.gain is not None else "",
        )
        for finding in findings
    )
    return Table(("Finding", "Cure", "Evidence", "Cost a step", "Gain"), rows, (3, 4))


def _experiments(found: RunDiagnosis) -> Table:
    words = {
        "fixed": "a step on one fixed batch",
        "doubled": "the same on twice the samples",
        "small": "forward and backward of one small patch",
        "whole": "a step with the batch in one piece",
        "eager": "a step of the network not compiled",
        "threads": "a step on as many threads as cores",
    }
    rows = [(words[name], ms(value)) for name, value in found.arms.seconds.items()]
    if found.split.feed_alone_s is not None:
        rows.append(("a batch with no step", ms(found.split.feed_alone_s)))
    for name, value in found.operations.items():
        rows.append(("a batch, made alone" if name == "batch" else f"of it saved without {name}", ms(value)))
    rows.append((f"a validation of all cases (by {found.rare.timed_cases})", ms(found.rare.validation_s)))
    rows.append(("a checkpoint: training stands still", ms(found.rare.checkpoint_s)))
    rows.append(("a checkpoint: until it is on the disk", ms(found.rare.write_s)))
    if found.cold is not None:
        rows.append(("reading all cases, once", ms(found.cold.read_total_s)))
        rows.append(("preparing all cases, once", ms(found.cold.prepare_total_s)))
    rows += [(f"forward and backward of a probe, {name}", ms(value)) for name, value in found.variants.items()]
    inner = {"tune": "network: choosing switches", "compile": "network: compiling"}
    rows += [(f"before the first step, {inner.get(name, name)}", ms(value)) for name, value in found.once.items()]
    return Table(("Experiment", "Time"), tuple((name, _whole(value)) for name, value in rows), (1,))
