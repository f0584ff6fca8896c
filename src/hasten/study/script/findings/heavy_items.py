"""Items so costly that no number of workers hides them."""

from __future__ import annotations

from hasten.study.finding import Finding
from hasten.study.script.contention import contended_s
from hasten.study.script.findings.experiments import step_of
from hasten.study.script.records import Record
from hasten.study.words import ms

_HIDE = ("no-workers", "few-workers")
HIDDEN = 1.5
"""Predicted gain from which other workers are the cure."""
SHARE = 0.15
"""Of a step that waiting for batches, and for the cores that make them, must take. Items that are hidden here, but for
which a GPU would wait, are a note."""


def find(record: Record, findings: list[Finding]) -> list[Finding]:
    """findings: of the other rules. Nothing is added where more workers hide the items or caching them is the cure."""
    results = record.experiments
    loader, items, step = results.get("workers") or {}, results.get("items") or {}, step_of(results)
    loaders = record.training_loaders
    if not loaders or items.get("kind") == "whole":
        return []
    if not loaders[0]["num_workers"] and len(loader.get("seconds") or ()) < 2:
        return []
    seconds = [float(value) for value in (loader.get("seconds") or {}).values()]
    work_s = float((loader.get("seconds") or {}).get("0") or 0.0) * float(loader.get("cpu_share") or 0.0)
    cores = max(1, int(loader.get("cores") or 1))
    hidden = step is None or work_s / cores <= step.compute_s
    lanes = max(1, int(loaders[0]["num_workers"]))
    gpu_waits = step is not None and not record.on_gpu and work_s / lanes >= step.gpu_s(cores)
    if hidden and any(one.name in _HIDE and (one.gain or 1.0) > HIDDEN for one in findings):
        return []
    lost_s = contended_s(record)
    cost = record.part("wait") + lost_s
    if record.step_s <= 0 or (cost < SHARE * record.train_s and not gpu_waits):
        return []
    evidence = f"the training waits {ms(record.part('wait'))} a step for its batch"
    if seconds:
        evidence = f"a batch takes {ms(max(seconds))} to make; {evidence}"
    if lost_s:
        evidence += (
            f", and {ms(lost_s)} for a core that one of {loaders[0]['num_workers']} workers has, "
            f"of {record.raw.get('cores')} cores"
        )
    return [
        record.finding(
            "heavy-items",
            loaders[0]["site"],
            "the items cost so much work that no number of workers hides all of it",
            "cache what is the same each time, and make the random transforms cheaper or a batch at a time: "
            "hasten.compile_transforms(chain)",
            evidence=evidence,
            cost_s=cost,
            level="note" if cost < SHARE * record.step_s else "finding",
        )
    ]
