"""Findings on the settings of the script's DataLoaders."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hasten.doctor.finding import WAITS, Edit, Finding, gain_of, ms
from hasten.doctor.script.findings.experiments import LOADERS, measured_loops, too_few, too_many, with_workers
from hasten.doctor.script.records import ProcessRecord, assumption
from hasten.doctor.script.source import follows_device
from hasten.doctor.script.time_split import contended_s
from hasten.observe.cores import usable_cores

LEAST_WORK_S = 0.005
"""Work on a batch below which its items are no heavy ones, however small the network is."""
LEAST_WAIT_S = 0.0005
"""Wait below which workers would cost more than they hide, as handing over a batch takes about as long."""
MANY = 2
"""Workers of a core, beyond which they are too many however little they take."""
RESTARTS, NOTED = 0.05, 0.01
"""Shares of the time spent on restarting workers, from which it is a finding, and a note."""
_HIDE = ("no-workers", "few-workers")
OTHERS_HIDE = 1.5
"""Predicted gain from which more workers are the cure."""
HEAVY = 0.10
"""Share of a step that waiting for batches, and for the cores that make them, must take."""
_PERSISTENT = Edit(LOADERS, (("persistent_workers", "True"),))
_RESTARTED = Finding(
    "no-persistent-workers", "the workers are started again for every pass over the data", _PERSISTENT.text, _PERSISTENT
)
_HEAVY_ITEMS = Finding(
    "heavy-items",
    "the items cost so much work that no number of workers hides all of it",
    "cache what is the same each time, and make the random transforms cheaper or a batch at a time: "
    "hasten.compile_transforms(chain)",
)
_UNPINNED_MEMORY = Finding(
    "unpinned-memory",
    "batches are copied to the GPU from pageable memory, and the host waits for each copy",
    "DataLoader(..., pin_memory=True), and batch.to(device, non_blocking=True)",
    Edit(LOADERS, (("pin_memory", "True"),)),
)


def find(record: ProcessRecord) -> Iterator[Finding]:
    """no-, few- and many-workers and unpinned-memory of the training's loaders, no-persistent-workers of all."""
    for loader in record.training_loaders:
        for rule in (_workers, _other_workers, _pinned):
            yield from rule(record, loader)
    for loader in record.listed("loaders"):
        yield from _persistent(record, loader)


def _workers(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    wait, step_s = record.part("wait"), record.step_s
    if loader["num_workers"] or loader["own_thread"] or wait < max(LEAST_WAIT_S, WAITS * (record.rest_s + wait)):
        return
    fetches = max(1, loader["fetches"])
    evidence = f"each step waits {ms(wait)} of {ms(step_s)} for its batch"
    if loader["fetches"]:
        evidence += f": {ms(loader['items_s'] / fetches)} for the items, {ms(loader['collate_s'] / fetches)} to collate"
    evidence += assumption(record.rest_s) if record.gpu_assumed and wait < WAITS * record.train_s else ""
    # On a CPU the workers take cores from the training, so only a part of the wait can be hidden. Where other counts
    # were measured, the experiments give the gain; this is then a note, as more cores would still hide the wait.
    measured = bool(measured_loops(record.experiments, 0))
    found = Finding(*too_few(0), *with_workers(min(4, usable_cores())))
    gain = None if measured else gain_of(wait if record.on_gpu else wait / 2, step_s)
    level, site = "note" if measured or wait < WAITS * step_s else "finding", loader["site"]
    yield record.finding(found, site, evidence=evidence, cost_s=wait, part="wait", gain=gain, level=level)


def _other_workers(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    """Notes: many-workers by the count or what they take from the training, few-workers for which a GPU would wait."""
    workers, cores, cost = loader["num_workers"] or 0, _cores(record), contended_s(record) or None
    (work_s, evidence), loops = _work(record, loader, True), measured_loops(record.experiments, workers)
    if workers > MANY * cores or (workers > cores and cost and cost >= WAITS * record.train_s):
        if loops and all(min(times) > max(loops[workers]) for count, times in loops.items() if count != workers):
            return  # Fewer were slower: they wait rather than work.
        words = too_many(workers, cores)
        evidence = f"a step waits {ms(cost)} of {ms(record.step_s)} for a core that workers have" if cost else ""
    elif record.gpu_assumed and 0 < workers < cores and work_s / workers > max(LEAST_WORK_S, record.rest_s):
        words, cost, evidence = too_few(workers), None, evidence + assumption(record.rest_s)
    else:
        return
    found = Finding(*words, *with_workers(cores))
    yield record.finding(found, loader["site"], evidence=evidence, cost_s=cost, level="note", gain=None)


def _cores(record: ProcessRecord) -> int:
    return max(1, int(record.raw.get("cores") or 1) // record.world)


def _persistent(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    """no-persistent-workers: a note where it costs little here, or was seen at the first pass only."""
    # Each validation starts its workers. An engine of ignite that is told to end starts a pass for nothing.
    passes = [each for each in loader["passes"] if each["batches"]]
    again = passes[1 if loader["training"] else 0 :]
    if not loader.get("num_workers") or loader["persistent_workers"] or not passes:
        return
    usual = loader["wait_s"] / max(1, loader["batches"])
    start_s = statistics.fmean(one["start_s"] for one in again or passes)
    cost = record.per_step(sum(record.share(one["step"]) * max(0.0, one["start_s"] - usual) for one in again))
    evidence = f"{len(again)} restarts, {ms(start_s)} each until a batch"
    if not again:
        length = max(loader.get("length") or 0, record.steps)
        cost = max(0.0, start_s - usual) / length
        evidence = f"the start took {ms(start_s)} until a batch, and a pass has {length} batches"
    here = cost >= RESTARTS * record.step_s
    there = record.gpu_assumed and cost >= RESTARTS * (record.rest_s + record.part("wait"))
    if not there and cost < NOTED * record.step_s:
        return
    evidence += assumption(record.rest_s) if there and not here else ""
    found, level = _RESTARTED, "finding" if here and again else "note"
    if loader["made"] > 1:
        found = replace(found, cure=f"once, before the loop over the passes: {found.cure}", edit=None)
    yield record.finding(found, loader["site"], evidence=evidence, cost_s=cost, level=level)


def _pinned(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    if loader["pin_memory"] or loader["own_thread"] or not record.cuda:
        return
    if not record.on_gpu and follows_device(loader["site"], "pin_memory"):
        return
    copies, cost = record.listed_dict("copies"), None
    if record.on_gpu:
        if not copies.get("count") or copies["pinned"] >= copies["count"] / 2:
            return
        cost = record.per_step(copies.get("seconds", 0.0))
    evidence = "" if cost is None else f"copies take {ms(cost)} of a step of {ms(record.step_s)}"
    level = "finding" if cost is None or cost >= 0.01 * record.step_s else "note"
    yield record.finding(_UNPINNED_MEMORY, loader["site"], evidence=evidence, cost_s=cost, level=level)


def heavy_items(record: ProcessRecord, findings: list[Finding]) -> list[Finding]:
    """heavy-items; a note where a cache or more workers are the cure. findings: of the other rules."""
    loaders, wait_s, cores = record.training_loaders, record.part("wait"), _cores(record)
    if not loaders or record.train_s <= 0:
        return []
    restarted = any(one.name == _RESTARTED.name for one in findings)
    work_s, evidence = _work(record, loaders[0], restarted)
    lost_s = 0.0 if record.gpu_assumed else contended_s(record)
    workers, beyond_s = loaders[0]["num_workers"], work_s / cores - record.rest_s
    # What items wait for, rather than compute, is hidden by workers. Beside a GPU these have all cores, but less time.
    cost = min(wait_s, work_s) + lost_s
    here = cost >= HEAVY * record.train_s
    there = record.gpu_assumed and (beyond_s if workers else cost) >= HEAVY * (record.rest_s + wait_s)
    if work_s < LEAST_WORK_S or not (here or there):
        return []
    others = any(one.name in _HIDE and (one.gain or 1.0) > OTHERS_HIDE for one in findings) and beyond_s <= 0
    others = others or (record.experiments.get("items") or {}).get("kind") == "whole"
    evidence = f"{evidence}, on {cores} cores; the training waits {ms(wait_s)} a step for its batch"
    if lost_s:
        evidence += f", and {ms(lost_s)} for a core that one of {workers} workers has"
    evidence += "" if here else assumption(record.rest_s)
    level = "finding" if here and not others and cost >= HEAVY * record.step_s else "note"
    more: dict[str, Any] = {"level": level, "cost_s": cost if here else None, "part": "wait"}
    return [record.finding(_HEAVY_ITEMS, loaders[0]["site"], evidence=evidence, **more)]


def _work(record: ProcessRecord, loader: dict[str, Any], restarted: bool) -> tuple[float, str]:
    """Processor seconds that the items of a batch cost, and in words what it is known from.

    That is what was seen of the loader in this process, or else the experiment, or its workers' processor time; not
    where they are restarted, which takes most of it.
    """
    fetches, tried = loader.get("fetches"), record.experiments.get("items") or {}
    if fetches:
        parts = f"{ms(loader['items_s'] / fetches)} for its items and {ms(loader['collate_s'] / fetches)} to collate"
        # Of most steps: the batches of a validation are in that of one.
        return statistics.median(step.get("wait_cpu", 0.0) for step in record.measured), f"a batch takes {parts}"
    if tried.get("work_s") and tried.get("site") == loader["site"]:
        work_s = tried["work_s"] * int(tried.get("batch_size") or 1)
        return work_s, f"a batch takes {ms(work_s)} of a core to make"
    work_s = 0.0 if restarted else float(record.listed_dict("load").get("workers") or 0.0) * record.step_s
    return work_s, f"the workers compute {ms(work_s)} a step"
