"""Values of the device that user code reads on the host within the step."""

from __future__ import annotations

from typing import Any

from hasten.study.finding import Finding, gain_of
from hasten.study.rules import READS
from hasten.study.script.records import Record
from hasten.study.words import ms

OFTEN = 0.5
"""Of the steps: reading every few steps, for a log, is as it should be."""
MAPS = 64
"""Elements from which what is read is a map or a picture, and not a few numbers."""


def find(record: Record) -> list[Finding]:
    """One host-read a line of code. On a CPU nothing is waited for, so that it is a note there unless it is costly."""
    by_site: dict[str, list[dict[str, Any]]] = {}
    for read in record.listed("reads"):
        if (record.on_gpu and read["device"] == "cpu") or read.get("validating"):
            continue
        if read["steps"] >= OFTEN * max(1, record.steps - 1):
            by_site.setdefault(read["site"], []).append(read)
    return [_finding(record, site, reads) for site, reads in by_site.items()]


def _cure(reads: list[dict[str, Any]]) -> str:
    """What fits what is read: a map or a picture, a question, or a number."""
    if any(read.get("elements", 0) >= MAPS for read in reads):
        return "work on it on the device, and copy it only in the steps in which it is shown"
    if any(read.get("boolean") or read["kind"] == "bool()" for read in reads):
        return "ask every 50 steps, or let the device decide (torch.where, GradScaler, torch._assert_async)"
    return "keep it a tensor (total += loss.detach()) and read it every 50 steps or at the end of the epoch"


def _finding(record: Record, site: str, reads: list[dict[str, Any]]) -> Finding:
    kinds = " and ".join(read["kind"] for read in reads)
    count, seconds = (record.per_step(sum(read[name] for read in reads)) for name in ("count", "seconds"))
    on_gpu = record.on_gpu
    # On a CPU it waits for nothing, but still copies.
    costly = seconds >= READS * record.step_s
    waits = f"the host waits {ms(seconds)} a step there" if on_gpu else f"{ms(seconds)} a step on this CPU"
    return record.finding(
        "host-read",
        site,
        f"{kinds} in every step makes the host wait for the GPU, which then waits for the host"
        if on_gpu or not costly
        else f"{kinds} in every step turns tensors into Python's own numbers",
        _cure(reads),
        evidence=f"{count:.1f} a step; {waits}",
        cost_s=seconds if on_gpu or costly else None,
        gain=gain_of(seconds, record.step_s) if costly and not on_gpu else None,
        level="finding" if record.cuda or costly else "note",
    )
