"""Needless tensor work in the step: unused gradients, repeated copies and casts."""

from __future__ import annotations

from typing import Any

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.host_reads import OFTEN
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record

SAME = 2
"""Comparisons with the step before, all equal, from which something is a constant."""
LARGE = 1000
"""Elements from which a copy from pageable memory is worth a word."""

_CALLS = {
    "input_gradient": (
        "needless-grad",
        "the network's input asks for a gradient, which nobody uses",
        "leave requires_grad off for the images",
    ),
    "unused_gradients": (
        "needless-grad",
        "gradients of this optimizer's weights are computed by another loss, and thrown away here",
        "module.requires_grad_(False) while the other loss goes backward, and True afterwards",
    ),
    "float64": (
        "late-cast",
        "double-precision tensors are made and carried along, and cast to what is needed only later",
        "make them float32 at once: numpy's .astype(np.float32), or dtype=torch.float32 where they are made",
    ),
}


def find(record: Record) -> list[Finding]:
    """needless-forward, needless-grad, late-cast, recreate, sync-copy, and unpinned-memory of what no loader made."""
    findings = []
    for call in record.listed("calls"):
        if call["kind"] in _CALLS and record.per_step(call["count"]) >= OFTEN:
            name, title, cure = _CALLS[call["kind"]]
            findings.append(_note(name, title, call["site"], cure, f"{record.per_step(call['count']):.1f} a step"))
        if call["kind"] == "needless_forward" and record.per_step(call["count"]) >= OFTEN:
            findings.append(_needless_forward(record, call))
    by_site: dict[str, list[dict[str, Any]]] = {}
    for sent in record.listed("sent"):
        by_site.setdefault(sent["site"], []).append(sent)
    for site, group in by_site.items():
        findings += _transfers(record, site, group)
    return findings


def _needless_forward(record: Record, call: dict[str, Any]) -> Finding:
    # On a GPU the host's time in the network is that of its launches.
    cost = None if record.cuda else record.per_step(call["seconds"])
    return Finding(
        name="needless-forward",
        title="a network is run in every step, and neither the loss nor anything else takes what it gives",
        where=place(call["site"]),
        cure="run it only in the steps whose loss has a weight for it",
        evidence=f"{record.per_step(call['count']):.1f} a step; its outputs of the second step were followed",
        cost_s=cost,
        gain=None if cost is None else gain_of(cost, record.step_s),
    )


def _note(name: str, title: str, site: str, cure: str, evidence: str, cuda: bool = False) -> Finding:
    level = "finding" if cuda else "note"
    return Finding(name=name, title=title, where=place(site), cure=cure, evidence=evidence, level=level)  # type: ignore[arg-type]


def _transfers(record: Record, site: str, sent: list[dict[str, Any]]) -> list[Finding]:
    count = sum(one["count"] for one in sent)
    evidence = f"{record.per_step(count):.1f} a step"
    findings = []
    again = sum(one["again"] for one in sent)
    constant = any(one["compared"] >= SAME and one["equal"] == one["compared"] for one in sent)
    if constant or (record.cuda and again >= OFTEN * count):
        findings.append(_note(
            "recreate", "the same tensor is made and sent to the device again and again", site,
            "make it once before the loop, on the device (register_buffer in a module)",
            evidence, record.cuda and again > 0,
        ))  # fmt: skip
    if not record.cuda or record.per_step(count) < OFTEN or "cuda" in record.devices:
        return findings  # On a GPU the copies themselves are measured.
    loaders = record.training_loaders
    pinned = any(loader["pin_memory"] for loader in loaders)
    of_batch = sum(one["batch"] for one in sent)
    if pinned and of_batch and sum(one["waits"] for one in sent) >= OFTEN * count:
        findings.append(_note(
            "sync-copy", "the batch lies in pinned memory, and the host waits for its copy all the same", site,
            "batch.to(device, non_blocking=True)", evidence, True,
        ))  # fmt: skip
    large = max(one["elements"] for one in sent) >= LARGE
    waits = any(one["waits"] for one in sent)
    if (
        not findings
        and not loaders
        and large
        and waits
        and not constant
        and not all(one["count"] == one["again"] for one in sent)
    ):
        findings.append(_note(
            "unpinned-memory", "tensors are sent to the GPU from pageable memory, and the host waits for it", site,
            "torch.from_numpy(array).pin_memory().to(device, non_blocking=True)", evidence, True,
        ))  # fmt: skip
    return findings
