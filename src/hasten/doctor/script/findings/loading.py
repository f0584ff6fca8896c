"""Findings on the settings of the script's DataLoaders."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hasten.doctor.finding import WAITS, Edit, Finding, gain_of, ms
from hasten.doctor.script.findings.experiments import LOADERS, measured_loops, step_of, too_few, too_many, with_workers
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.script.source import follows_device
from hasten.doctor.script.time_split import contended_s
from hasten.observe.cores import usable_cores

LEAST_WORK_S = 0.005
"""Work on a batch below which its items are no heavy ones, however small the network is."""
LEAST_WAIT_S = 0.0005
"""Wait below which workers would cost more than they hide, as handing over a batch takes about as long."""
RESTARTS = 0.05
"""Share of the time spent on restarting workers, from which it is a finding."""
_HIDE = ("no-workers", "few-workers")
OTHERS_HIDE = 1.5
"""Predicted gain from which more workers are the cure."""
HEAVY = 0.10
"""Share of a step that waiting for batches, and for the cores that make them, must take."""
_PERSISTENT = Edit(LOADERS, (("persistent_workers", "True"),))
_RESTARTED = Finding(
    "no-persistent-workers",
    "the workers are started again for every pass over the data",
    _PERSISTENT.text,
    _PERSISTENT,
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
    """no-workers, many-workers and unpinned-memory of the training's loaders, no-persistent-workers of all."""
    for loader in record.training_loaders:
        for rule in (_workers, _many_workers, _pinned):
            yield from rule(record, loader)
    for loader in record.listed("loaders"):
        yield from _persistent(record, loader)


def _workers(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    wait, step_s = record.part("wait"), record.step_s
    if loader["num_workers"] or loader["own_thread"] or wait < max(LEAST_WAIT_S, WAITS * record.train_s):
        return
    fetches = max(1, loader["fetches"])
    evidence = f"each step waits {ms(wait)} of {ms(step_s)} for its batch"
    if loader["fetches"]:
        evidence += f": {ms(loader['items_s'] / fetches)} for the items, {ms(loader['collate_s'] / fetches)} to collate"
    # On a CPU the workers take cores from the training, so only a part of the wait can be hidden. Where other counts
    # were measured, the experiments give the gain; this is then a note, as more cores would still hide the wait.
    measured = bool(measured_loops(record.experiments, 0))
    found = Finding(*too_few(0), *with_workers(min(4, usable_cores())))
    gain = None if measured else gain_of(wait if record.on_gpu else wait / 2, step_s)
    level, site = "note" if measured or wait < WAITS * step_s else "finding", loader["site"]
    yield record.finding(found, site, evidence=evidence, cost_s=wait, part="wait", gain=gain, level=level)


def _many_workers(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    """A note from the time that the training waits for a core; where other numbers were measured they decide."""
    workers, cores, lost_s = loader["num_workers"] or 0, int(record.raw.get("cores") or 1), contended_s(record)
    if workers <= cores or lost_s < WAITS * record.train_s:
        return
    found = Finding(*too_many(workers, cores), *with_workers(cores))
    evidence = f"a step waits {ms(lost_s)} of {ms(record.step_s)} for a core that workers have"
    yield record.finding(found, loader["site"], evidence=evidence, cost_s=lost_s, level="note", gain=None)


def _persistent(record: ProcessRecord, loader: dict[str, Any]) -> Iterator[Finding]:
    # Each validation starts its workers. An engine of ignite that is told to end starts a pass for nothing.
    again = [each for each in loader["passes"][1 if loader["training"] else 0 :] if each["batches"]]
    if not loader.get("num_workers") or loader["persistent_workers"] or not again:
        return
    usual = loader["wait_s"] / max(1, loader["batches"])
    cost = record.per_step(sum(record.share(one["step"]) * max(0.0, one["start_s"] - usual) for one in again))
    if cost < RESTARTS * record.step_s:
        return
    evidence = f"{len(again)} restarts, {ms(statistics.fmean(one['start_s'] for one in again))} each until a batch"
    found = _RESTARTED
    if loader["made"] > 1:
        found = replace(found, cure=f"once, before the loop over the passes: {found.cure}", edit=None)
    yield record.finding(found, loader["site"], evidence=evidence, cost_s=cost)


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
    """heavy-items, unless a cache is the cure; a note where more workers are. findings: of the other rules."""
    loaders, step = record.training_loaders, step_of(record)
    if not loaders or record.step_s <= 0 or (record.experiments.get("items") or {}).get("kind") == "whole":
        return []
    restarted = any(one.name == _RESTARTED.name for one in findings)
    work_s, evidence = _work(record, loaders[0], restarted)
    tried = record.experiments.get("workers") or {}
    cores = max(1, int(tried.get("cores") or record.raw.get("cores") or 1) // record.world)
    workers = int(loaders[0]["num_workers"])
    if not (workers and tried.get("seconds")) and work_s < max(LEAST_WORK_S, HEAVY * record.train_s):
        return []
    compute_s = record.train_s - record.part("wait") if step is None else step.compute_s
    hidden = work_s / cores <= compute_s
    others_hide = hidden and any(one.name in _HIDE and (one.gain or 1.0) > OTHERS_HIDE for one in findings)
    lost_s = contended_s(record)
    shared_s = 0.0
    if workers and not record.on_gpu:
        # On a CPU, workers do what the free cores can't on those that the network would have.
        free = max(0, cores - int(record.raw.get("threads") or 1))
        shared_s = max(0.0, work_s - free * record.step_s) / cores
    cost = max(record.part("wait") + lost_s, shared_s)
    if cost < HEAVY * record.train_s:
        return []
    evidence = f"{evidence}, on {cores} cores; the training waits {ms(record.part('wait'))} a step for its batch"
    if lost_s:
        evidence += f", and {ms(lost_s)} for a core that one of {workers} workers has"
    level, site = "note" if others_hide or cost < HEAVY * record.step_s else "finding", loaders[0]["site"]
    return [record.finding(_HEAVY_ITEMS, site, evidence=evidence, cost_s=cost, part="wait", level=level)]


def _work(record: ProcessRecord, loader: dict[str, Any], restarted: bool) -> tuple[float, str]:
    """Processor seconds that the items of a batch cost, and in words what it is known from.

    That is what was seen of the loader in this process, or else the experiment, or its workers' processor time; not
    where they are restarted, which takes most of it.
    """
    tried = record.experiments.get("workers") or {}
    alone, fetches = tried.get("seconds") or {}, loader.get("fetches")
    if fetches:
        parts = f"{ms(loader['items_s'] / fetches)} for its items and {ms(loader['collate_s'] / fetches)} to collate"
        # Of most steps: the batches of a validation are in that of one.
        return statistics.median(step.get("wait_cpu", 0.0) for step in record.measured), f"a batch takes {parts}"
    if alone.get("0"):
        work_s = alone["0"] * float(tried.get("cpu_share") or 0.0)
        return work_s, f"a batch takes {ms(max(alone.values()))} to make"
    work_s = 0.0 if restarted else float(record.listed_dict("load").get("workers") or 0.0) * record.step_s
    return work_s, f"the workers compute {ms(work_s)} a step"
