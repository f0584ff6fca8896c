"""Memory housekeeping inside the training loop."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.experiments import costs
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record
from hasten.study.words import ms

OFTEN = 0.2
"""Calls a step from which it belongs to the loop, not to the epoch."""
SHARE = 0.02
"""Of the step's time from which rarer calls count too."""
_CALLS = {
    "empty_cache": (
        "empty-cache",
        "torch.cuda.empty_cache() in the loop gives memory back that the next step asks the driver for again",
        "remove the call",
    ),
    "gc_collect": (
        "gc-collect",
        "gc.collect() in the loop looks at every object of the process",
        "remove the call; tensors are freed when their last name goes",
    ),
    "zero_grad": (
        "zero-grad-memset",
        "gradients are filled with zeros, and then added to, rather than dropped",
        "zero_grad(set_to_none=True), the default",
    ),
}


def find(record: Record) -> list[Finding]:
    """empty-cache, gc-collect and zero-grad-memset."""
    findings = []
    for call in record.listed("calls"):
        cost = record.per_step(call["seconds"])
        often = record.per_step(call["count"]) >= OFTEN or cost >= SHARE * record.step_s
        if call["kind"] not in _CALLS or not often:
            continue
        name, title, cure = _CALLS[call["kind"]]
        evidence = f"{record.per_step(call['count']):.1f} a step, {ms(cost)} of {ms(record.step_s)}"
        cost = costs(record).get(name, cost)
        # Without a GPU, emptying the cache returns at once.
        on_gpu = name != "empty-cache" or "cuda" in record.devices
        findings.append(Finding(
            name=name, title=title, where=place(call["site"]), cure=cure, evidence=evidence, cost_s=cost,
            gain=gain_of(cost, record.step_s) if on_gpu else None,
            level="finding" if on_gpu or record.cuda else "note",
        ))  # fmt: skip
    return findings
