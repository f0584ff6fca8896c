"""Memory housekeeping inside the training loop."""

from __future__ import annotations

from typing import Any

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record
from hasten.study.words import ms

OFTEN = 0.2
"""Calls a step from which it belongs to the loop, not to the epoch."""
SHARE = 0.02
"""Of the step's time from which rarer calls count too."""


def find(record: Record) -> list[Finding]:
    """empty-cache, gc-collect and zero-grad-memset."""
    findings = []
    for call in record.listed("calls"):
        cost = record.per_step(call["seconds"])
        if record.per_step(call["count"]) < OFTEN and cost < SHARE * record.step_s:
            continue
        build = _BUILDERS.get(call["kind"])
        if build is not None:
            findings.append(build(record, call, cost))
    return findings


def _empty_cache(record: Record, call: dict[str, Any], cost: float) -> Finding:
    return Finding(
        name="empty-cache",
        title="torch.cuda.empty_cache() in the loop gives memory back that the next step asks the driver for again",
        where=place(call["site"]),
        cure="remove the call",
        evidence=_evidence(record, call, cost),
        cost_s=cost,
        gain=gain_of(cost, record.step_s) if "cuda" in record.devices else None,
        # Without a GPU the call returns at once.
        level="finding" if record.cuda else "note",
    )


def _collect(record: Record, call: dict[str, Any], cost: float) -> Finding:
    return Finding(
        name="gc-collect",
        title="gc.collect() in the loop looks at every object of the process",
        where=place(call["site"]),
        cure="remove the call; tensors are freed when their last name goes",
        evidence=_evidence(record, call, cost),
        cost_s=cost,
        gain=gain_of(cost, record.step_s),
    )


def _zero_grad(record: Record, call: dict[str, Any], cost: float) -> Finding:
    from hasten.study.script.findings.experiments import costs

    measured = costs(record).get("zero-grad-memset", cost)
    return Finding(
        name="zero-grad-memset",
        title="gradients are filled with zeros, and then added to, rather than dropped",
        where=place(call["site"]),
        cure="zero_grad(set_to_none=True), the default",
        evidence=_evidence(record, call, cost),
        cost_s=measured,
        gain=gain_of(measured, record.step_s),
    )


def _evidence(record: Record, call: dict[str, Any], cost: float) -> str:
    return f"{record.per_step(call['count']):.1f} a step, {ms(cost)} of {ms(record.step_s)}"


_BUILDERS = {"empty_cache": _empty_cache, "gc_collect": _collect, "zero_grad": _zero_grad}
