"""Items so costly that no number of workers hides them."""

from __future__ import annotations

from hasten.study.finding import Finding, gain_of
from hasten.study.script.contention import alone_s, contended_s
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record
from hasten.study.words import ms

SHARE = 0.15
"""Of a step that waiting for batches, and for the cores that make them, must take."""
_BETTER = ("no-workers", "few-workers", "uncached-items", "uncached-transforms")


def find(record: Record, found: list[Finding]) -> list[Finding]:
    """`found`: what is known already; where another number of workers, or a cache, helps, that is the finding."""
    loader = record.experiments.get("workers") or {}
    if len(loader.get("seconds") or ()) < 2 or any(one.name in _BETTER for one in found):
        return []
    lost = contended_s(record)
    cost = record.part("wait") + lost
    if record.step_s <= 0 or cost < SHARE * record.step_s:
        return []
    seconds = {int(count): value for count, value in loader["seconds"].items()}
    told = (
        f"a batch takes {ms(max(seconds.values()))} to make; the training waits {ms(record.part('wait'))} a step for it"
    )
    if lost:
        told += (
            f", and beside {loader['now']} workers on {loader.get('cores')} cores forward and backward take "
            f"{ms(alone_s(record) + lost)} instead of {ms(alone_s(record))}"
        )
    return [
        Finding(
            name="heavy-items",
            title="the items cost so much work that no number of workers hides it",
            where=place(loader.get("site", "")),
            cure="cache what is the same each time, and make the random transforms cheaper or a batch at a time: "
            "hasten.compile_transforms(chain)",
            evidence=told,
            cost_s=cost,
            gain=gain_of(cost, record.step_s),
        )
    ]
