"""Several devices: the wrapper, and the balance between the ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten.study.finding import Finding, gain_of
from hasten.study.script.findings.words import place
from hasten.study.script.records import Record
from hasten.study.words import ms

UNEQUAL = 1.25
"""Work of the busiest rank over the mean of all, from which the others wait for it noticeably."""


def find_wrapper(record: Record) -> list[Finding]:
    """data-parallel; with at most one GPU it does nothing, and is a note."""
    site = record.listed_dict("mode_sites").get("data_parallel")
    if site is None:
        return []
    several = record.raw.get("cuda_devices", 0) > 1 or record.assume_cuda
    return [
        Finding(
            name="data-parallel",
            title="DataParallel copies the network to every GPU in each step, and one process drives them all",
            where=place(site) if site else "",
            cure="torchrun --nproc-per-node=N, with DistributedDataParallel and a DistributedSampler",
            evidence=f"{record.raw.get('cuda_devices', 0)} GPUs here",
            level="finding" if several else "note",
        )
    ]


def work(record: Record) -> float:
    """Median seconds a step that a rank is busy itself: waiting for data counts, waiting for other ranks doesn't.

    On a CPU that is the thread's processor time. On a GPU, where the host's time is no measure, the forward pass stands
    for it, as there are no collectives in it.
    """
    if "cuda" in record.devices:
        steps = [step for step in record.measured if step.get("synced")] or record.measured
        return statistics.median(step["parts"].get("forward", 0.0) + step["parts"].get("wait", 0.0) for step in steps)
    return statistics.median(
        step["cpu"] - step.get("wait_cpu", 0.0) + step["parts"].get("wait", 0.0) for step in record.measured
    )


def find_balance(records: Sequence[Record]) -> list[Finding]:
    """unequal-ranks: one rank has more to do than the others in most steps."""
    measured = [record for record in records if record.measured]
    if len(measured) < 2:
        return []
    by_rank = {record.rank: work(record) for record in measured}
    busiest = max(by_rank, key=lambda rank: by_rank[rank])
    mean = statistics.fmean(by_rank.values())
    if mean <= 0 or by_rank[busiest] < UNEQUAL * mean:
        return []
    slow = next(record for record in measured if record.rank == busiest)
    loaders = slow.training_loaders
    cost = by_rank[busiest] - mean
    ranks = ", ".join(f"rank {rank} {ms(seconds)}" for rank, seconds in sorted(by_rank.items()))
    return [
        Finding(
            name="unequal-ranks",
            title=f"rank {busiest} has more work in a step than the others, which wait for it",
            where=place(loaders[0]["site"] if loaders else slow.root_site),
            cure="give every rank the same number of samples of the same size: DistributedSampler, fixed crops",
            evidence=f"work a step: {ranks}",
            cost_s=cost,
            gain=gain_of(cost, slow.step_s),
        )
    ]
