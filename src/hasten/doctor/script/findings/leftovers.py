"""Findings on what else is in the training loop: debugging tools, memory housekeeping, validation, checkpoints."""

from __future__ import annotations

import statistics

from hasten.doctor.finding import CHECKPOINTS, VALIDATION, Finding, FindingText, finding_from_share, ms
from hasten.doctor.script.records import WARMUP, ProcessRecord, place

OFTEN = 0.2
"""Calls per step from which a call belongs to the loop rather than to the epoch."""
SHARE = 0.02
"""Share of the step's time from which rarer calls count too."""
MOST = 0.5
"""Share of the steps from which a profiler counts as always on: one with a schedule runs in a few."""

_CALLS = {
    "empty_cache": FindingText(
        "empty-cache",
        "torch.cuda.empty_cache() in the loop gives memory back that the next step asks the driver for again",
        "remove the call",
    ),
    "gc_collect": FindingText(
        "gc-collect",
        "gc.collect() in the loop looks at every object of the process",
        "remove the call; tensors are freed when their last name goes",
    ),
    "zero_grad": FindingText(
        "zero-grad-memset",
        "gradients are filled with zeros, and then added to, rather than dropped",
        "zero_grad(set_to_none=True), the default",
    ),
}
_MODES = {
    "anomaly": FindingText(
        "anomaly-detection",
        "anomaly detection is on: every operation keeps its traceback, and every gradient is searched for NaN",
        "remove torch.autograd.set_detect_anomaly(True) (Lightning: detect_anomaly=False)",
    ),
    "profiler": FindingText(
        "profiler-on",
        "a profiler records every step",
        "remove it, or give it schedule(wait=1, warmup=1, active=3, repeat=1)",
    ),
    "nvtx": FindingText("nvtx-on", "emit_nvtx() marks every operation of every step", "use it under Nsight only"),
}
_GRADCHECK = FindingText(
    "gradcheck",
    "gradients are checked against finite differences while training",
    "move torch.autograd.gradcheck into a test",
)


def find(record: ProcessRecord) -> list[Finding]:
    """empty-cache, gc-collect, zero-grad-memset, anomaly-detection, profiler-on, nvtx-on and gradcheck."""
    calls, findings = record.listed("calls"), []
    for call in calls:
        cost, count = record.per_step(call["seconds"]), record.per_step(call["count"])
        if call["kind"] not in _CALLS or (count < OFTEN and cost < SHARE * record.step_s):
            continue
        text = _CALLS[call["kind"]]
        evidence = f"{count:.1f} a step, {ms(cost)} of {ms(record.step_s)}"
        more: dict[str, object] = {}
        if call["kind"] == "empty_cache" and not record.on_gpu:  # without CUDA the call returns at once
            more = {"gain": None, "level": "finding" if record.cuda else "note"}
        findings.append(record.finding(text, call["site"], evidence=evidence, cost_s=cost, **more))
    sites = record.listed_dict("mode_sites")
    for kind, mode in record.listed_dict("modes").items():
        if mode["steps"] >= MOST * max(1, record.steps - 1):
            evidence = f"on in {mode['steps']} of {record.steps - 1} steps"
            findings.append(record.finding(_MODES[kind], sites.get(kind, ""), evidence=evidence))
    for call in calls:
        if call["kind"] == "gradcheck":
            cost, evidence = record.per_step(call["seconds"]), f"{call['count']} times, {ms(call['seconds'])} in all"
            findings.append(record.finding(_GRADCHECK, call["site"], evidence=evidence, cost_s=cost))
    return findings


def pauses(record: ProcessRecord) -> list[Finding]:
    """validation-share and checkpoint-stall, over the steps that were watched."""
    return _validation(record) + _checkpoints(record)


def _validation(record: ProcessRecord) -> list[Finding]:
    cost, step_s = record.part("validation"), record.step_s
    validations = [each for each in record.listed("validations") if each["step"] >= WARMUP]
    if not validations:
        return []
    seconds = statistics.fmean(each["seconds"] for each in validations)
    return finding_from_share(
        cost,
        step_s,
        VALIDATION,
        saved_s=0.8 * cost,
        name="validation-share",
        title="validation takes a large part of the time",
        where=place(validations[-1]["site"]),
        cure="validate a fifth as often, on fewer cases until the end, and under torch.inference_mode()",
        evidence=f"{len(validations)} of {ms(seconds)} in {record.steps} steps: {cost / step_s:.0%} of the time",
    )


def _checkpoints(record: ProcessRecord) -> list[Finding]:
    saves = [each for each in record.listed("saves") if each["step"] >= WARMUP]
    measured = len(record.measured)
    if not saves or not measured:
        return []
    # A median, as the first save of a process also imports modules.
    usual = statistics.median(each["seconds"] for each in saves)
    return finding_from_share(
        usual * len(saves) / measured,
        record.step_s,
        CHECKPOINTS,
        name="checkpoint-stall",
        title="the training stands still while checkpoints are written",
        where=place(saves[-1]["site"]),
        cure="save less often, or copy the state to the host and write it from a thread",
        evidence=f"{len(saves)} saves of {ms(usual)} in {measured} steps",
    )
