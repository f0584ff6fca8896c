"""Several devices: the wrapper, and the balance between the ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from hasten.study.finding import Finding
from hasten.study.script.records import Record
from hasten.study.words import ms

UNEQUAL = 1.25
"""Work of the busiest rank over the mean of all, from which the others wait for it noticeably."""


def find(records: Sequence[Record]) -> list[Finding]:
    """data-parallel, which is a note with at most one GPU, as it does nothing there; and unequal-ranks."""
    return [*_wrapper(records[0]), *_balance(records)]


def _wrapper(record: Record) -> Iterator[Finding]:
    sites, gpus = record.listed_dict("mode_sites"), record.raw.get("cuda_devices", 0)
    if "data_parallel" in sites:
        yield record.finding(
            "data-parallel",
            sites["data_parallel"],
            "DataParallel copies the network to every GPU in each step, and one process drives them all",
            "torchrun --nproc-per-node=N, with DistributedDataParallel and a DistributedSampler",
            evidence=f"{gpus} GPUs here",
            level="finding" if gpus > 1 or record.assume_cuda else "note",
        )


def _work(record: Record) -> float:
    """Median seconds a step that a rank is busy itself: waiting for data counts, waiting for other ranks doesn't.

    On a CPU that is the thread's processor time. On a GPU, where the host's time is no measure, the forward pass stands
    for it, as there are no collectives in it.
    """
    if record.on_gpu:
        steps = [step for step in record.measured if step.get("synced")] or record.measured
        return statistics.median(step["parts"].get("forward", 0.0) + step["parts"].get("wait", 0.0) for step in steps)
    return statistics.median(
        step["cpu"] - step.get("wait_cpu", 0.0) + step["parts"].get("wait", 0.0) for step in record.measured
    )


def _balance(records: Sequence[Record]) -> Iterator[Finding]:
    """One rank has more to do than the others in most steps."""
    ranks = [record for record in records if record.measured]
    if len(ranks) < 2:
        return
    measured = [(_work(record), record) for record in ranks]
    most, slow = max(measured, key=lambda pair: pair[0])
    mean = statistics.fmean(seconds for seconds, _ in measured)
    if mean > 0 and most >= UNEQUAL * mean:
        yield slow.finding(
            "unequal-ranks",
            slow.loader_site,
            f"rank {slow.rank} has more work in a step than the others, which wait for it",
            "give every rank the same number of samples of the same size: DistributedSampler, fixed crops",
            evidence="work a step: " + ", ".join(f"rank {record.rank} {ms(seconds)}" for seconds, record in measured),
            cost_s=most - mean,
        )
