"""Needless tensor work in the step: unused gradients, repeated copies and casts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hasten.study.finding import Finding
from hasten.study.script.findings.host_reads import OFTEN
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
        kind, count = call["kind"], record.per_step(call["count"])
        if kind in _CALLS and count >= OFTEN:
            name, title, cure = _CALLS[kind]
            findings.append(
                record.finding(name, call["site"], title, cure, evidence=f"{count:.1f} a step", level="note")
            )
        if kind == "needless_forward" and count >= OFTEN:
            findings.append(record.finding(
                "needless-forward", call["site"],
                "a network is run in every step, and neither the loss nor anything else takes what it gives",
                "run it only in the steps whose loss has a weight for it",
                evidence=f"{count:.1f} a step; its outputs of the second step were followed",
                # On a GPU the host's time in the network is that of its launches.
                cost_s=None if record.cuda else record.per_step(call["seconds"]),
            ))  # fmt: skip
    by_site: dict[str, list[dict[str, Any]]] = {}
    for sent in record.listed("sent"):
        by_site.setdefault(sent["site"], []).append(sent)
    for site, group in by_site.items():
        evidence = f"{record.per_step(sum(one['count'] for one in group)):.1f} a step"
        for name, title, cure, level in _transfers(record, group):
            findings.append(record.finding(name, site, title, cure, evidence=evidence, level=level))
    return findings


def _transfers(record: Record, sent: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Name, title, cure and level of what is wrong with the copies that one line makes."""
    count, again, waits, of_batch = (sum(one[name] for one in sent) for name in ("count", "again", "waits", "batch"))
    constant = any(one["compared"] >= SAME and one["equal"] == one["compared"] for one in sent)
    recreated = constant or (record.cuda and again >= OFTEN * count)
    if recreated:
        title = "the same tensor is made and sent to the device again and again"
        cure = "make it once before the loop, on the device (register_buffer in a module)"
        yield "recreate", title, cure, "finding" if record.cuda and again > 0 else "note"
    if not record.cuda or record.per_step(count) < OFTEN or record.on_gpu:
        return  # On a GPU the copies themselves are measured.
    loaders = record.training_loaders
    if any(loader["pin_memory"] for loader in loaders) and of_batch and waits >= OFTEN * count:
        title = "the batch lies in pinned memory, and the host waits for its copy all the same"
        yield "sync-copy", title, "batch.to(device, non_blocking=True)", "finding"
    large = max(one["elements"] for one in sent) >= LARGE
    if not recreated and not loaders and large and waits and not all(one["count"] == one["again"] for one in sent):
        title = "tensors are sent to the GPU from pageable memory, and the host waits for it"
        cure = "torch.from_numpy(array).pin_memory().to(device, non_blocking=True)"
        yield "unpinned-memory", title, cure, "finding"
