"""Every finding of a watched run, ranked."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.study.finding import Finding, ranked
from hasten.study.script.findings import (
    algorithms,
    host_reads,
    housekeeping,
    leftovers,
    lines,
    loading,
    nnunet,
    parallel,
    pauses,
    tensors,
)
from hasten.study.script.records import Record

LEAST_STEPS = 4
"""Fewest steps after the first one for which findings are reported."""


def findings_of(records: Sequence[Record]) -> list[Finding]:
    """records: of the processes that trained, by rank; the first one's code is what findings point into."""
    from hasten.study.script.findings import experiments, heavy_items

    if not records or records[0].steps <= LEAST_STEPS:
        return []
    first = records[0]
    findings: list[Finding] = []
    for one in (loading, host_reads, housekeeping, leftovers, algorithms, pauses, lines, tensors, nnunet):
        findings += one.find(first)
    findings += parallel.find_wrapper(first)
    findings += parallel.find_balance(records)
    if first.experiments:
        findings += experiments.findings(first)
        findings += heavy_items.find(first, findings)
    return ranked(_once(findings))


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Of those with one name and place: what the experiments prove rather than a note."""
    by_place: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.name, finding.where
        if key not in by_place or (by_place[key].level, finding.level) == ("note", "finding"):
            by_place[key] = finding
    return list(by_place.values())
