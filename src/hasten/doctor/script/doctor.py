"""`hasten doctor -- python train.py`: runs the script, diagnoses it and reports the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hasten.doctor.finding import Finding, ranked
from hasten.doctor.script import report
from hasten.doctor.script.findings import algorithms, calls, experiments, lines, loading
from hasten.doctor.script.launch import ScriptRun, run_script
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.script.time_split import split_of
from hasten.doctor.time_split import diagnose
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.rundir import json_text

FAILED = 2
"""Exit code for a script that had to be stopped before anything could be measured."""
LEAST_STEPS = 4
"""Fewest steps after the first one for which findings are reported."""


def doctor_script(
    command: Sequence[str],
    *,
    steps: int,
    seconds: float,
    out: Path | None,
    assume_cuda: bool,
    echo: Callable[[str], None],
    as_json: bool = False,
) -> int:
    """Watch `command` for `steps` training steps or `seconds`, and report verdict and findings through `echo`.

    out: folder for doctor.json and doctor.html; None writes nothing. as_json: the only output is one JSON document, and
    the script's own output is suppressed. Returns the exit code to pass on: the script's own, 0 where the doctor
    stopped it. Raises ValueError for a command that can't be run and for limits below 1.
    """
    if steps < 1 or seconds <= 0:
        raise ValueError(f"--steps {steps} --seconds {seconds:g}: nothing to watch; give both a positive bound")
    meter = LoadMeter()
    run = run_script(command, steps=steps, seconds=seconds, assume_cuda=assume_cuda, quiet=as_json)
    report_data = judge(run, assume_cuda, meter.others())
    for text in [] if as_json else report.summary(report_data):
        echo(text)
    if as_json:
        echo(json_text(report.as_json(report_data)).rstrip("\n"))
    if out is not None:
        for path in report.write(report_data, out):
            if not as_json:
                echo(f"written    {path}")
    return FAILED if run.ended == "never trained" and run.exit_code > 128 else run.exit_code


def judge(run: ScriptRun, assume_cuda: bool = False, others: float = 0.0) -> report.ScriptReport:
    """Verdict and findings of a run; neither after too few steps. others: cores that other programs used."""
    enough = bool(run.records) and run.records[0].steps > LEAST_STEPS
    split = split_of(run.records[0]) if enough else None
    return report.ScriptReport(
        run=run,
        assume_cuda=assume_cuda,
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
    rules = (loading.find, calls.host_reads, calls.find, algorithms.find, calls.pauses, lines.find)
    for rule in (*rules, loading.nnunet, algorithms.spinning):
        findings += rule(first)
    findings += algorithms.parallel(records)
    if first.experiments:
        findings += experiments.findings(first.experiments)
        findings += loading.heavy_items(first, findings)
    by_place: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        # Of several with one name and place, a proven finding replaces a note.
        existing = by_place.setdefault((finding.name, finding.where), finding)
        if (existing.level, finding.level) == ("note", "finding"):
            by_place[finding.name, finding.where] = finding
    return ranked(by_place.values())
