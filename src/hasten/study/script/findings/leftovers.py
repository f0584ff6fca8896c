"""Debugging tools that were left switched on."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record
from hasten.study.words import ms

MOST = 0.5
"""Share of the steps from which a profiler is left on: one with a schedule runs in a few."""

_DESCRIPTIONS = {
    "anomaly": (
        "anomaly-detection",
        "anomaly detection is on: every operation keeps its traceback, and every gradient is searched for NaN",
        "remove torch.autograd.set_detect_anomaly(True) (Lightning: detect_anomaly=False)",
    ),
    "profiler": (
        "profiler-on",
        "a profiler records every step",
        "remove it, or give it schedule(wait=1, warmup=1, active=3, repeat=1)",
    ),
    "nvtx": ("nvtx-on", "emit_nvtx() marks every operation of every step", "use it under Nsight only"),
}


def find(record: Record) -> list[Finding]:
    """anomaly-detection, profiler-on, nvtx-on and gradcheck."""
    findings = []
    sites = record.listed_dict("mode_sites")
    for kind, mode in record.listed_dict("modes").items():
        if mode["steps"] < MOST * max(1, record.steps - 1):
            continue
        name, title, cure = _DESCRIPTIONS[kind]
        cost = _measured(record, name)
        findings.append(
            Finding(
                name=name,
                title=title,
                where=place(sites[kind]) if sites.get(kind) else "",
                cure=cure,
                evidence=f"on in {mode['steps']} of {record.steps - 1} steps",
                cost_s=cost,
                gain=None if cost is None else gain_of(cost, record.step_s),
            )
        )
    return findings + _gradcheck(record)


def _measured(record: Record, name: str) -> float | None:
    from hasten.study.script.findings.experiments import costs

    return costs(record).get(name)


def _gradcheck(record: Record) -> list[Finding]:
    findings = []
    for call in record.listed("calls"):
        if call["kind"] != "gradcheck":
            continue
        cost = record.per_step(call["seconds"])
        findings.append(
            Finding(
                name="gradcheck",
                title="gradients are checked against finite differences while training",
                where=place(call["site"]),
                cure="move torch.autograd.gradcheck into a test",
                evidence=f"{call['count']} times, {ms(call['seconds'])} in all",
                cost_s=cost,
                gain=gain_of(cost, record.step_s),
            )
        )
    return findings
