"""`hasten doctor -- python train.py`: runs the script, diagnoses it and reports: lines, JSON, and a page for people."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.doctor.finding import Finding, ms, ranked
from hasten.doctor.script.findings import algorithms, calls, experiments, loading
from hasten.doctor.script.findings.lines import find as host_lines
from hasten.doctor.script.launch import ScriptRun, run_script
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.script.source import diff_of
from hasten.doctor.script.time_split import split_of
from hasten.doctor.show import finding_lines, findings_section, split_section
from hasten.doctor.time_split import Diagnosis, Split, diagnose
from hasten.observe.cpu_load import BUSY, LoadMeter
from hasten.report.html import write_page as write_html
from hasten.report.model import Page, Section

_EXPERIMENTS = {
    "workers": "other numbers of workers",
    "items": "whether items are the same each time",
    "doubled_batch": "a batch of twice the samples",
    "autocast": "autocast in bfloat16",
    "channels_last": "the channels_last layout",
    "conv_bias": "convolutions with idle biases",
}
"""Names of the probe's experiments."""
FAILED = 2
"""Exit code for a script that had to be stopped before anything could be measured."""
LEAST_STEPS = 4
"""Fewest steps after the first one for which findings are reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptReport:
    """The complete result of one call of the doctor."""

    run: ScriptRun
    split: Split | None
    diagnosis: Diagnosis | None
    findings: tuple[Finding, ...]
    others: float = 0.0
    """Cores that other programs used meanwhile."""

    @property
    def exit_code(self) -> int:
        """The script's own; 0 where the doctor stopped it."""
        return FAILED if self.run.ended == "never trained" and self.run.exit_code > 128 else self.run.exit_code


def diagnose_script(
    command: Sequence[str], *, steps: int, seconds: float, assume_cuda: bool = False, quiet: bool = False
) -> ScriptReport:
    """Watch `command` for `steps` training steps or `seconds`: its verdict and findings.

    quiet: the script's own output is suppressed. Raises ValueError for a command that can't be run and for limits below
    1.
    """
    if steps < 1 or seconds <= 0:
        raise ValueError(f"--steps {steps} --seconds {seconds:g}: nothing to watch; give both a positive bound")
    meter = LoadMeter()
    run = run_script(command, steps=steps, seconds=seconds, assume_cuda=assume_cuda, quiet=quiet)
    return judge(run, meter.others())


def judge(run: ScriptRun, others: float = 0.0) -> ScriptReport:
    """Verdict and findings of a run; neither after too few steps. others: cores that other programs used."""
    enough = bool(run.records) and run.records[0].steps > LEAST_STEPS
    split = split_of(run.records[0]) if enough else None
    return ScriptReport(
        run=run,
        split=split,
        diagnosis=diagnose(split) if split is not None else None,
        findings=tuple(findings_of(run.records)),
        others=others,
    )


def findings_of(records: Sequence[ProcessRecord]) -> list[Finding]:
    """Every finding of a watched run, ranked. records: by rank; findings refer to the code of the first one."""
    if not records or records[0].steps <= LEAST_STEPS:
        return []
    first = records[0]
    findings: list[Finding] = []
    rules = (loading.find, calls.host_reads, calls.find, algorithms.find, calls.pauses, host_lines, algorithms.spinning)
    for rule in rules:
        findings += rule(first)
    findings += algorithms.parallel(records)
    if first.experiments:
        findings += experiments.find(first)
    findings += loading.heavy_items(first, findings)
    by_place: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        # Of several with one name and place, a proven finding replaces a note.
        existing = by_place.setdefault((finding.name, finding.where), finding)
        if (existing.level, finding.level) == ("note", "finding"):
            by_place[finding.name, finding.where] = finding
    order = ranked(by_place.values())
    return [replace(each, diff=diff_of(each.where, each.edit)) if each.edit else each for each in order]


# The report


def lines(report: ScriptReport) -> list[str]:
    """For a terminal: the verdict, where the time went, and the findings in their order."""
    if report.diagnosis is None:
        few = ["too few steps to judge by; give it more --steps, or more --seconds"] if report.run.records else []
        return [ending(report.run), *few]
    evidence = (f"  {line}" for line in report.diagnosis.evidence)
    texts = [ending(report.run), "", report.diagnosis.sentence, *evidence, "", *finding_lines(report.findings)]
    if all(finding.level == "note" for finding in report.findings):
        texts.append(no_fault(report))
    return texts + untried(report.run) + unseen(report.run) + busy(report)


def no_fault(report: ScriptReport) -> str:
    """What to say where no finding is sure: no more than was seen."""
    assert report.diagnosis is not None
    if untried(report.run):
        return "no fault found so far, but not everything was tried"
    if report.diagnosis.bound != "compute":
        return f"no fault found that explains why the training is {report.diagnosis.bound}-bound; look there yourself"
    if unseen(report.run):
        return "no fault found in what was seen of the script"
    return "no fault found: the script does what can be seen from outside as it should"


def untried(run: ScriptRun) -> list[str]:
    """What was not tried, why, and the seconds that it needs; empty if all was tried that can be."""
    tried = run.records[0].experiments if run.records else {}
    if not tried or "skipped" in tried:
        return [f"not tried   any experiment: {tried.get('skipped', 'the script had ended before')}"]
    results = {name: tried.get(name) or {} for name in _EXPERIMENTS}
    failed = {name: one["error"] for name, one in results.items() if "error" in one}
    texts = [f"not tried   {_EXPERIMENTS[name]}: it failed ({error})" for name, error in failed.items()]
    if tried.get("without_network"):
        texts.append(f"not tried   other settings of the network: {tried['without_network']}")
    late = {name: one for name, one in results.items() if "needs_s" in one}
    for name, one in late.items():
        texts.append(f"not tried   {_EXPERIMENTS[name]}: {one['skipped']}; needs {one['needs_s']:.0f} s")
    if late:
        # Half of --seconds goes to the experiments.
        suggested_s = 2 * (float(tried.get("took_s") or 0.0) + sum(one["needs_s"] for one in late.values()))
        texts.append(f"give it --seconds {10 * math.ceil(suggested_s / 10):d} to try all of it")
    return texts


def unseen(run: ScriptRun) -> list[str]:
    """What a script was stopped before, and how many steps lead there; empty if it came to all that can be faulty."""
    if run.ended != "bounded":
        return []
    record = run.records[0]
    loaders = record.training_loaders
    passes = max((len(each["passes"]) for each in loaders), default=2)
    kinds = {
        "a validation": bool(record.listed("validations")),
        "a checkpoint": bool(record.listed("saves")),
        "a second pass over the data": passes > 1,
    }
    missing = [name for name, seen in kinds.items() if not seen]
    batches = max((each.get("length") or 0 for each in loaders if passes == 1), default=0)  # or an end was seen
    ahead = f"; a pass has {batches} batches, so give it --steps {batches + 10}" if batches >= record.steps else ""
    return [f"not seen    {', '.join(missing)}{ahead}"] if missing else []


def busy(report: ScriptReport) -> list[str]:
    """A warning if the times can't be trusted."""
    if report.others <= BUSY:
        return []
    return [f"warning: other programs used {report.others:.1f} cores meanwhile: costs and gains are rough"]


def ending(run: ScriptRun) -> str:
    """How the run ended, in a sentence."""
    return f"{shlex.join(run.command)}: {_how(run)}"


def _how(run: ScriptRun) -> str:
    ranks = f" on each of {len(run.records)} ranks" if len(run.records) > 1 else ""
    watched = f"{run.records[0].steps if run.records else 0} training steps{ranks} in {run.seconds:.1f} s"
    unseen = "torch was imported, but no torch.optim.Optimizer made a step"
    if not run.torch_seen:
        unseen = "no Python process of it imported torch where the probe could watch it: 2.1 or newer, with "
        unseen += "PYTHONPATH as given (not python -I, nor in a container or on another machine)"
    return {
        "bounded": f"watched {watched}, then stopped the script",
        "finished": f"ended by itself after {watched}",
        "timeout": f"had to be stopped after {watched}: it did not come to the end of a step in time",
        "crashed": f"failed with exit code {run.exit_code}" + (f" after {watched}" if run.records else ""),
        "never trained": f"never trained: {unseen}",
    }[run.ended]


def content_of(report: ScriptReport) -> dict[str, Any]:
    """Ready for `hasten.observe.rundir.write_json`."""
    run = report.run
    return {
        "command": list(run.command),
        "ended": run.ended,
        "exit_code": run.exit_code,
        "seconds": run.seconds,
        "ranks": len(run.records),
        "assume_cuda": any(record.assume_cuda for record in run.records),
        "other_cores": report.others,
        "verdict": report.diagnosis,
        "split": report.split,
        "findings": report.findings,
        "records": [record.raw for record in run.records],
    }


def write_page(report: ScriptReport, out: Path) -> Path:
    """The HTML page of a report with a verdict. Raises ValueError if it can't be written."""
    assert report.diagnosis is not None
    assert report.split is not None
    sections = [
        split_section(report.split, report.diagnosis),
        findings_section(report.findings, f"{no_fault(report).capitalize()}."),
    ]
    for title, texts in (("Not tried", untried(report.run)), ("Not seen", unseen(report.run))):
        sections += [Section(title, "\n\n".join(texts))] if texts else []
    num_findings = sum(finding.level == "finding" for finding in report.findings)
    cards = (
        ("step", ms(report.split.step_s), f"mean of {report.split.steps}"),
        ("findings", str(num_findings), f"{len(report.findings) - num_findings} notes"),
        ("ranks", str(len(report.run.records)), _how(report.run)),
    )
    if busy(report):
        sections.insert(0, Section("A busy machine", busy(report)[0]))
    title = f"Doctor: {shlex.join(report.run.command)}"
    page = Page(title=title, verdict=report.diagnosis.sentence, cards=cards, sections=tuple(sections))
    return write_html(page, out)
