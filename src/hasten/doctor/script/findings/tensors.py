"""Findings on needless tensor work: values read on the host, unused gradients, repeated copies and casts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hasten.doctor.finding import READS, Finding, FindingText, gain_of, ms
from hasten.doctor.script.findings import texts
from hasten.doctor.script.records import ProcessRecord

OFTEN = 0.5
"""Share of the steps from which something happens in every step; reading every few steps, for a log, is fine."""
MAPS = 64
"""Number of elements from which a tensor counts as a map or an image rather than a few numbers."""
SAME = 2
"""Number of comparisons with the previous step, all equal, from which a tensor counts as constant."""
LARGE = 1000
"""Number of elements from which a copy from pageable memory is reported."""

_CALLS = {
    "input_gradient": FindingText(
        "needless-grad",
        "the network's input asks for a gradient, which nobody uses",
        "leave requires_grad off for the images",
    ),
    "unused_gradients": FindingText(
        "needless-grad",
        "gradients of this optimizer's weights are computed by another loss, and thrown away here",
        "module.requires_grad_(False) while the other loss goes backward, and True afterwards",
    ),
    "float64": FindingText(
        "late-cast",
        "double-precision tensors are made and carried along, and cast to what is needed only later",
        "make them float32 at once: numpy's .astype(np.float32), or dtype=torch.float32 where they are made",
    ),
}


def find(record: ProcessRecord) -> list[Finding]:
    """needless-forward, needless-grad, late-cast, metadata-tensor, recreate, sync-copy, unpinned-memory."""
    findings = []
    for call in record.listed("calls"):
        kind, count = call["kind"], record.per_step(call["count"])
        if kind in _CALLS and count >= OFTEN:
            findings.append(record.finding(_CALLS[kind], call["site"], evidence=f"{count:.1f} a step", level="note"))
        if kind == "needless_forward" and count >= OFTEN:
            findings.append(
                record.finding(
                    texts.NEEDLESS_FORWARD,
                    call["site"],
                    evidence=f"{count:.1f} a step; its outputs of the second step were followed",
                    # On a GPU the host's time in the network is that of its launches.
                    cost_s=None if record.cuda else record.per_step(call["seconds"]),
                )
            )
    if record.raw.get("subclass"):
        findings.append(
            record.finding(texts.METADATA_TENSOR, record.root_site, evidence=record.raw["subclass"], level="note")
        )
    by_site: dict[str, list[dict[str, Any]]] = {}
    for sent in record.listed("sent"):
        by_site.setdefault(sent["site"], []).append(sent)
    for site, group in by_site.items():
        evidence = f"{record.per_step(sum(one['count'] for one in group)):.1f} a step"
        for text, level in _transfers(record, group):
            findings.append(record.finding(text, site, evidence=evidence, level=level))
    return findings


def _transfers(record: ProcessRecord, sent: list[dict[str, Any]]) -> Iterator[tuple[FindingText, str]]:
    """What is wrong with the copies that one line makes, and its level."""
    count, again, waits, of_batch = (sum(one[name] for one in sent) for name in ("count", "again", "waits", "batch"))
    constant = any(one["compared"] >= SAME and one["equal"] == one["compared"] for one in sent)
    recreated = constant or (record.cuda and again >= OFTEN * count)
    if recreated:
        yield texts.RECREATE, "finding" if record.cuda and again > 0 else "note"
    if not record.cuda or record.per_step(count) < OFTEN or record.on_gpu:
        return  # On a GPU the copies themselves are measured.
    loaders = record.training_loaders
    if any(loader["pin_memory"] for loader in loaders) and of_batch and waits >= OFTEN * count:
        yield texts.SYNC_COPY, "finding"
    large = max(one["elements"] for one in sent) >= LARGE
    if not recreated and not loaders and large and waits and not all(one["count"] == one["again"] for one in sent):
        yield texts.UNPINNED_TENSORS, "finding"


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
    return record.finding(
        FindingText("host-read", title, _read_cure(reads)),
        site,
        evidence=f"{count:.1f} a step; {waits}",
        cost_s=seconds if on_gpu or costly else None,
        gain=gain_of(seconds, record.step_s) if costly and not on_gpu else None,
        level="finding" if record.cuda or costly else "note",
    )
