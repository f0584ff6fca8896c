"""The doctor's report: lines for the terminal, JSON for programs, a page for people."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.files import replacing
from hasten.observe.load import BUSY
from hasten.study.finding import Finding
from hasten.study.script.launch import ScriptRun
from hasten.study.split import PARTS, Diagnosis, Split
from hasten.study.words import ms

if TYPE_CHECKING:
    from hasten.study.script.try_cures import Tried

_EXPERIMENTS = {
    "workers": "other numbers of workers",
    "items": "whether items are the same each time",
    "plain_tensors": "plain tensors instead of a subclass",
    "doubled_batch": "a batch of twice the samples",
    "autocast": "autocast in bfloat16",
    "fused": "a fused optimizer",
    "channels_last": "the channels_last layout",
    "conv_bias": "the convolutions without their idle biases",
    "cudnn_benchmark": "cuDNN's search for the fastest algorithms",
    "zero_grad": "gradients set to None",
    "anomaly": "the step without anomaly detection",
}
"""In words, what the probe's experiments try."""
JSON_NAME, PAGE_NAME = "doctor.json", "doctor.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The complete result of one call of the doctor."""

    run: ScriptRun
    assume_cuda: bool
    split: Split | None
    diagnosis: Diagnosis | None
    findings: tuple[Finding, ...]
    tried: tuple[Tried, ...] | None = None
    """None if none were to be tried."""
    others: float = 0.0
    """Cores that other programs used meanwhile."""


def summary(report: Report) -> list[str]:
    """Lines: the verdict, where the time went, and the findings in their order."""
    if report.diagnosis is None:
        few = ["too few steps to judge by; give it more --steps, or more --seconds"] if report.run.records else []
        return [ending(report.run), *few]
    evidence = (f"  {line}" for line in report.diagnosis.evidence)
    lines = [ending(report.run), "", report.diagnosis.sentence, *evidence, "", *finding_lines(report.findings)]
    missing = untried(report.run)
    if all(finding.level == "note" for finding in report.findings):
        nothing = "no fault found: the script does what can be seen from outside as it should"
        lines.append("no fault found so far, but not everything was tried" if missing else nothing)
    return lines + missing + busy(report)


def untried(run: ScriptRun) -> list[str]:
    """What there was no time to try, why, and the seconds that it needs; empty if all was tried that can be."""
    tried = run.records[0].experiments if run.records else {}
    skipped = {name: tried[name] for name in _EXPERIMENTS if "needs_s" in (tried.get(name) or {})}
    if not skipped:
        return []
    lines = [
        f"not tried   {_EXPERIMENTS[name]}: {one['skipped']}; needs {one['needs_s']:.0f} s"
        for name, one in skipped.items()
    ]
    # Half of --seconds goes to the experiments.
    suggested_s = 2 * (float(tried.get("took_s") or 0.0) + sum(one["needs_s"] for one in skipped.values()))
    return [*lines, f"give it --seconds {10 * math.ceil(suggested_s / 10):d} to try all of it"]


def busy(report: Report) -> list[str]:
    """A warning if the times can't be trusted."""
    if report.others <= BUSY:
        return []
    return [f"warning: other programs used {report.others:.1f} cores meanwhile: costs and gains are rough"]


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for number, group in enumerate(grouped(findings), start=1):
        finding = group[0]
        mark = f"{number:2d}." if finding.level == "finding" else "   note:"
        where = ", ".join(dict.fromkeys(one.where for one in group if one.where))
        lines.append(f"{mark} {where + ': ' if where else ''}{finding.title}  [{finding.name}]")
        for evidence in dict.fromkeys(one.evidence for one in group):
            now = "; ".join(filter(None, (amounts(finding), evidence)))
            lines += [f"      now   {now}"] if now else []
        lines.append(f"      cure  {finding.cure}")
    return lines


def amounts(finding: Finding) -> str:
    """What it costs, and what the cure is predicted to gain; nothing of a note."""
    if finding.level == "note":
        return ""
    cost = "" if finding.cost_s is None else f"costs {ms(finding.cost_s)} a step"
    gain = f"predicted {finding.gain:.2f} times as fast without it" if (finding.gain or 0.0) >= 1.005 else ""
    return ", ".join(filter(None, (cost, gain)))


def ending(run: ScriptRun) -> str:
    """How the run ended, in a sentence."""
    return f"{shlex.join(run.command)}: {_how(run)}"


def _how(run: ScriptRun) -> str:
    ranks = f" on each of {len(run.records)} ranks" if len(run.records) > 1 else ""
    watched = f"{run.records[0].steps if run.records else 0} training steps{ranks} in {run.seconds:.1f} s"
    unseen = "torch was imported, but no torch.optim.Optimizer made a step"
    if not run.torch_seen:
        unseen = "no Python process of it imported torch where the probe could see it; it must run with PYTHONPATH as "
        unseen += "given (not python -I, nor in a container or on another machine)"
    return {
        "bounded": f"watched {watched}, and stopped at the bound",
        "finished": f"ended by itself after {watched}",
        "timeout": f"had to be stopped after {watched}: it did not come to the end of a step in time",
        "crashed": f"failed with exit code {run.exit_code}" + (f" after {watched}" if run.records else ""),
        "never trained": f"never trained: {unseen}",
    }[run.ended]


def as_json(report: Report) -> dict[str, Any]:
    """Ready for `json.dumps`."""
    run = report.run
    return {
        "command": list(run.command),
        "ended": run.ended,
        "exit_code": run.exit_code,
        "seconds": run.seconds,
        "ranks": len(run.records),
        "assume_cuda": report.assume_cuda,
        "other_cores": report.others,
        "verdict": dataclasses.asdict(report.diagnosis) if report.diagnosis else None,
        "split": dataclasses.asdict(report.split) if report.split else None,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "tried": [dataclasses.asdict(each) for each in report.tried or ()],
        "records": [record.raw for record in run.records],
    }


def write(report: Report, out: Path) -> list[Path]:
    """`doctor.json` and, where there is a verdict, `doctor.html` in the folder `out`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out}: cannot be made ({error.strerror or error}); name another folder") from None
    path = out / JSON_NAME
    with replacing(path, path.with_suffix(".part")) as file:
        file.write(json.dumps(as_json(report), indent=1).encode())
    return [path] if report.diagnosis is None else [path, _page(report, out / PAGE_NAME)]


def _page(report: Report, path: Path) -> Path:
    from hasten.report.html import write_page
    from hasten.report.model import Bar, Page, Section, Table

    assert report.diagnosis is not None
    assert report.split is not None
    split = report.split
    shown = {name: seconds for name, seconds in split.parts.items() if seconds > 0.002 * split.step_s}
    bar = Bar(tuple((PARTS[name], 1e3 * seconds) for name, seconds in shown.items()), unit="ms")
    sections = [Section("Where a step's time goes", "\n\n".join(report.diagnosis.evidence), bar=bar)]
    rows = tuple(_row(group) for group in grouped(report.findings))
    columns = ("Where", "What", "Cure", "Cost a step", "Predicted", "Evidence")
    if rows:
        sections.append(Section("Findings", "Largest predicted gain first.", table=Table(columns, rows, (3, 4))))
    else:
        sections.append(Section("Findings", "No fault found."))
    if untried(report.run):
        sections.append(Section("Not tried", "\n\n".join(untried(report.run))))
    if report.tried is not None:
        from hasten.study.script.try_page import section

        sections.append(section(report.tried))
    num_findings = sum(finding.level == "finding" for finding in report.findings)
    cards = (
        ("step", ms(split.step_s), f"mean of {split.steps}"),
        ("findings", str(num_findings), f"{len(report.findings) - num_findings} notes"),
        ("ranks", str(len(report.run.records)), _how(report.run)),
    )
    if busy(report):
        sections.insert(0, Section("A busy machine", busy(report)[0]))
    title = f"Doctor: {shlex.join(report.run.command)}"
    page = Page(title=title, verdict=report.diagnosis.sentence, cards=cards, sections=tuple(sections))
    return write_page(page, path)


def grouped(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Notes of one kind and cure together, in the place of the first; each finding, with its own cost, by itself."""
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        key: object = number if finding.level == "finding" else (finding.name, finding.cure)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _row(group: Sequence[Finding]) -> tuple[str, ...]:
    finding, lines = group[0], "\n".join(dict.fromkeys(one.where for one in group if one.where))
    note = "" if finding.level == "finding" else "Note: "
    gain = "" if finding.gain is None or note else f"{finding.gain:.2f}×"
    cost = "" if finding.cost_s is None or note else ms(finding.cost_s)
    evidence = "\n".join(dict.fromkeys(one.evidence for one in group if one.evidence))
    return (lines, note + finding.title, finding.cure, cost, gain, evidence)
