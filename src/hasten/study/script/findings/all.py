"""Every finding of a watched run, ranked."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.study.finding import Finding, ranked
from hasten.study.script.findings import algorithms, experiments, leftovers, lines, loading, tensors
from hasten.study.script.records import ProcessRecord

LEAST_STEPS = 4
"""Fewest steps after the first one for which findings are reported."""


def findings_of(records: Sequence[ProcessRecord]) -> list[Finding]:
    """records: of the processes that trained, by rank; the first one's code is what findings point into."""
    if not records or records[0].steps <= LEAST_STEPS:
        return []
    first = records[0]
    findings: list[Finding] = []
    rules = (loading.find, tensors.host_reads, leftovers.find, algorithms.find, leftovers.pauses, lines.find)
    for rule in (*rules, tensors.find, loading.nnunet):
        findings += rule(first)
    findings += algorithms.parallel(records)
    if first.experiments:
        findings += experiments.findings(first.experiments)
        findings += loading.heavy_items(first, findings)
    by_place: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        # Of those with one name and place: what the experiments prove rather than a note.
        existing = by_place.setdefault((finding.name, finding.where), finding)
        if (existing.level, finding.level) == ("note", "finding"):
            by_place[finding.name, finding.where] = finding
    return ranked(by_place.values())
