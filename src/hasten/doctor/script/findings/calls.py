"""Findings on calls in the loop: needless tensor work, host reads, debugging tools, validation, checkpoints."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from hasten.doctor.finding import CHECKPOINTS, READS, VALIDATION, Edit, Finding, gain_of, ms
from hasten.doctor.script.records import WARMUP, ProcessRecord

OFTEN = 0.5
"""Share of the steps from which something happens in every step; reading every few steps, for a log, is fine."""
MAPS = 64
"""Number of elements from which a tensor counts as a map or an image rather than a few numbers."""
SAME = 2
"""Number of comparisons with the previous step, all equal, from which a tensor counts as constant."""
LARGE = 1000
"""Number of elements from which a copy from pageable memory is reported."""

IN_LOOP = 0.2
"""Calls per step from which a call belongs to the loop rather than to the epoch."""
SHARE = 0.02
"""Share of the step's time from which rarer calls count too."""
MOST = 0.5
"""Share of the steps from which a profiler counts as always on: one with a schedule runs in a few."""

_LEFT = {
    "empty_cache": Finding(
        "empty-cache",
        "torch.cuda.empty_cache() in the loop gives memory back that the next step asks the driver for again",
        "remove the call",
        Edit(("empty_cache",)),
    ),
    "gc_collect": Finding(
        "gc-collect",
        "gc.collect() in the loop looks at every object of the process",
        "remove the call; tensors are freed when their last name goes",
        Edit(("collect",)),
    ),
    "zero_grad": Finding(
        "zero-grad-memset",
        "gradients are filled with zeros, and then added to, rather than dropped",
        "zero_grad(set_to_none=True), the default",
        Edit(("zero_grad",), (("set_to_none", "True"),)),
    ),
}
"""Calls that cost their own time."""
_MODES = {
    "anomaly": Finding(
        "anomaly-detection",
        "anomaly detection is on: every operation keeps its traceback, and every gradient is searched for NaN",
        "remove torch.autograd.set_detect_anomaly(True) (Lightning: detect_anomaly=False)",
        Edit(("set_detect_anomaly",)),
    ),
    "profiler": Finding(
        "profiler-on", "a profiler records every step", "remove it, or give it a schedule(wait=1, warmup=1, active=3)"
    ),
    "nvtx": Finding("nvtx-on", "emit_nvtx() marks every operation of every step", "use it under Nsight only"),
}
_GRADCHECK = Finding("gradcheck", "gradients are checked against finite differences", "move gradcheck into a test")
_CALLS = {
    "input_gradient": Finding(
        "needless-grad", "the input asks for a gradient that nobody uses", "leave requires_grad off for the images"
    ),
    "unused_gradients": Finding(
        "needless-grad",
        "gradients of this optimizer's weights are computed by another loss, and thrown away here",
        "module.requires_grad_(False) while the other loss goes backward, and True afterwards",
    ),
    "needless_graph": Finding(
        "needless-grad",
        "a network whose weights no optimizer takes keeps in every step what a backward pass needs",
        "requires_grad_(False) for its weights, and torch.no_grad() around it if no gradient passes through",
    ),
    "float64": Finding(
        "late-cast", "tensors are made in double precision and cast later", "make them float32: .astype(np.float32)"
    ),
}
_HOOKS_PILE_UP = Finding(
    "hooks-pile-up", "hooks are registered again and again, and all run", "register them once, before the loop"
)
_FORWARDS = {
    "needless_forward": Finding(
        "needless-forward", "nothing uses the outputs of this network", "run it only where its loss counts"
    ),
    "repeated_forward": Finding(
        "repeated-forward", "the network runs twice on one input", "keep the scores of the first pass"
    ),
}
_VALIDATION_GRAPH = Finding(
    "validation-graph",
    "validation keeps what a backward pass needs of every forward pass, and none follows",
    "with torch.inference_mode(): around it (torch.no_grad() in a line of its own switches nothing off)",
)
_TRAINING_CASES = Finding(
    "training-cases-validated", "a validation runs the training cases again", "average the loss of the steps instead"
)
_VALIDATION_SHARE = Finding(
    "validation-share", "validation takes a large part of the time", "validate a fifth as often, or on fewer cases"
)
_CHECKPOINT_STALL = Finding(
    "checkpoint-stall", "the training waits while checkpoints are written", "save less often, or from a thread"
)
_METADATA_TENSOR = Finding(
    "metadata-tensor",
    "the network and the loss run on tensors of a subclass, whose Python code sees every operation",
    "image.as_tensor() before the network (MONAI), or set_track_meta(False)",
)
_UNPINNED_TENSORS = Finding(
    "unpinned-memory", "tensors are sent from pageable memory", "tensor.pin_memory().to(device, non_blocking=True)"
)
_SYNC_COPY = Finding(
    "sync-copy",
    "the batch lies in pinned memory, and the host waits for its copy all the same",
    "batch.to(device, non_blocking=True)",
    Edit(("to", "cuda"), (("non_blocking", "True"),)),
)
_RECREATE = Finding(
    "recreate", "the same tensor is made and sent in every step", "make it once, on the device (register_buffer)"
)


def find(record: ProcessRecord) -> list[Finding]:
    """What is called in the loop, or left on there, and what is sent to the device; not validations and checkpoints."""
    findings = []
    for call in record.listed("calls"):
        kind, site = call["kind"], call["site"]
        count, cost = record.per_step(call["count"]), record.per_step(call["seconds"])
        evidence = f"{count:.1f} a step"
        if kind in _LEFT and (count >= IN_LOOP or cost >= SHARE * record.step_s):
            more: dict[str, Any] = {}
            if kind == "empty_cache" and not record.on_gpu:  # without CUDA the call returns at once
                more = {"gain": None, "level": "finding" if record.cuda else "note"}
            evidence += f", {ms(cost)} of {ms(record.step_s)}"
            findings.append(record.finding(_LEFT[kind], site, evidence=evidence, cost_s=cost, **more))
        elif kind == "gradcheck":
            evidence = f"{call['count']} times, {ms(call['seconds'])} in all"
            findings.append(record.finding(_GRADCHECK, site, evidence=evidence, cost_s=cost))
        elif kind in _CALLS and count >= OFTEN:
            findings.append(record.finding(_CALLS[kind], site, evidence=evidence, level="note"))
        elif kind in _FORWARDS and count >= OFTEN:
            # On a GPU the host's time in the network is that of its launches.
            costs = None if record.cuda else cost
            evidence += "; its outputs of the second step were followed" if kind == "needless_forward" else ""
            findings.append(record.finding(_FORWARDS[kind], site, evidence=evidence, cost_s=costs))
        elif kind == "hook" and call["count"] > 1 and record.raw.get("hooks_added", 0) > 1:
            evidence = f"{record.raw['hooks_added']} more hooks after {record.steps} steps"
            findings.append(record.finding(_HOOKS_PILE_UP, site, evidence=evidence))
    sites = record.listed_dict("mode_sites")
    for kind, mode in record.listed_dict("modes").items():
        if mode["steps"] >= MOST * max(1, record.steps - 1):
            evidence = f"on in {mode['steps']} of {record.steps - 1} steps"
            findings.append(record.finding(_MODES[kind], sites.get(kind, ""), evidence=evidence))
    if record.raw.get("subclass"):
        evidence = record.raw["subclass"]
        findings.append(record.finding(_METADATA_TENSOR, record.root_site, evidence=evidence, level="note"))
    by_site: dict[str, list[dict[str, Any]]] = {}
    for sent in record.listed("sent"):
        by_site.setdefault(sent["site"], []).append(sent)
    for site, group in by_site.items():
        evidence = f"{record.per_step(sum(one['count'] for one in group)):.1f} a step"
        for text, level in _transfers(record, group):
            findings.append(record.finding(text, site, evidence=evidence, level=level))
    return findings


def _transfers(record: ProcessRecord, sent: list[dict[str, Any]]) -> Iterator[tuple[Finding, str]]:
    """What is wrong with the copies that one line makes, and its level."""
    count, again, waits, of_batch = (sum(one[name] for one in sent) for name in ("count", "again", "waits", "batch"))
    constant = any(one.get("compared", 0) >= SAME and one["equal"] == one["compared"] for one in sent)
    recreated = constant or (record.cuda and again >= OFTEN * count)
    if recreated:
        yield _RECREATE, "finding" if record.cuda and again > 0 else "note"
    if not record.cuda or record.per_step(count) < OFTEN or record.on_gpu:
        return  # On a GPU the copies themselves are measured.
    loaders = record.training_loaders
    if any(loader["pin_memory"] for loader in loaders) and of_batch and waits >= OFTEN * count:
        yield _SYNC_COPY, "finding"
    large = max(one["elements"] for one in sent) >= LARGE
    if not recreated and not loaders and large and waits and not all(one["count"] == one["again"] for one in sent):
        yield _UNPINNED_TENSORS, "finding"


def host_reads(record: ProcessRecord) -> list[Finding]:
    """One host-read for each line of code; on a CPU, where nothing has to be waited for, a note unless it is costly."""
    by_site: dict[str, list[dict[str, Any]]] = {}
    for read in record.listed("reads"):
        if (record.on_gpu and read["device"] == "cpu") or read.get("validating"):
            continue
        if read["steps"] >= OFTEN * max(1, record.steps - 1):
            by_site.setdefault(read["site"], []).append(read)
    return [_host_read(record, site, reads) for site, reads in by_site.items()]


def _read_cure(reads: list[dict[str, Any]]) -> str:
    """The cure for reading a map, a boolean or a number."""
    if any(read.get("elements", 0) >= MAPS for read in reads):
        return "work on it on the device, and copy it only in the steps in which it is shown"
    if any(read.get("boolean") or read["kind"] == "bool()" for read in reads):
        return "ask every 50 steps, or let the device decide (torch.where, GradScaler, torch._assert_async)"
    return "keep it a tensor (total += loss.detach()) and read it every 50 steps or at the end of the epoch"


def _host_read(record: ProcessRecord, site: str, reads: list[dict[str, Any]]) -> Finding:
    kinds = " and ".join(read["kind"] for read in reads)
    count, seconds = (record.per_step(sum(read[name] for read in reads)) for name in ("count", "seconds"))
    on_gpu = record.on_gpu
    # On a CPU it waits for nothing, but still copies.
    costly = seconds >= READS * record.step_s
    waits = f"the host waits {ms(seconds)} a step there" if on_gpu else f"{ms(seconds)} a step on this CPU"
    title = f"{kinds} in every step makes the host wait for the GPU, which then waits for the host"
    if costly and not on_gpu:
        title = f"{kinds} in every step turns tensors into Python's own numbers"
    cost, level = seconds if on_gpu or costly else None, "finding" if record.cuda or costly else "note"
    gain = gain_of(seconds, record.step_s) if costly and not on_gpu else None
    found, evidence = Finding("host-read", title, _read_cure(reads)), f"{count:.1f} a step; {waits}"
    return record.finding(found, site, evidence=evidence, cost_s=cost, gain=gain, level=level)


def pauses(record: ProcessRecord) -> Iterator[Finding]:
    """What validations do, and the shares of validations and checkpoints, over the steps that were watched."""
    yield from _validated(record)
    step_s, cost = record.step_s, record.part("validation")
    validations, saves = ([one for one in record.listed(n) if one["step"] >= WARMUP] for n in ("validations", "saves"))
    if validations and cost >= VALIDATION * step_s:
        mean_s, gain = statistics.fmean(each["seconds"] for each in validations), gain_of(0.8 * cost, step_s)
        evidence = f"{_often(record, validations, mean_s)}: {cost / step_s:.0%} of the time"
        site = validations[-1]["site"]
        yield record.finding(_VALIDATION_SHARE, site, evidence=evidence, cost_s=cost, gain=gain)
    # A median, as the first save of a process also imports modules.
    usual = statistics.median(each["seconds"] for each in saves) if saves else 0.0
    cost = usual * sum(record.share(each["step"]) for each in saves) / max(1, len(record.measured))
    if saves and cost >= CHECKPOINTS * step_s:
        evidence = _often(record, saves, usual)
        yield record.finding(_CHECKPOINT_STALL, saves[-1]["site"], evidence=evidence, cost_s=cost)


def _validated(record: ProcessRecord) -> Iterator[Finding]:
    """validation-graph and training-cases-validated."""
    rounds = [each for each in record.listed("validations") if each.get("passes")]
    with_graph = [each for each in rounds if each["graphs"]]
    if with_graph:
        last = with_graph[-1]
        evidence = f"{last['graphs']} of {last['passes']} forward passes of a round record a graph"
        yield record.finding(_VALIDATION_GRAPH, last["graph_site"], evidence=evidence)
    shares = [each["trained_on"] / each["passes"] for each in rounds]
    if any(share > 0 for share in shares):
        last = max(zip(shares, rounds, strict=True), key=lambda pair: pair[0])[1]
        again_s = (
            share * record.share(each["step"]) * each["seconds"] for share, each in zip(shares, rounds, strict=True)
        )
        cost = record.per_step(sum(again_s))
        evidence = f"{last['trained_on']} of {last['passes']} forward passes of a round"
        level = "finding" if cost >= SHARE * record.step_s else "note"
        yield record.finding(_TRAINING_CASES, last["site"], evidence=evidence, cost_s=cost, level=level)


def _often(record: ProcessRecord, events: list[dict[str, Any]], seconds: float) -> str:
    """How often something happened that takes so long."""
    early = any(record.share(each["step"]) < 1 for each in events)
    when = "after a pass that was ended early to see it" if early else f"in {record.steps} steps"
    return f"{len(events)} of {ms(seconds)} {when}"
