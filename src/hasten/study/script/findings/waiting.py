"""Findings on how the threads of torch's operators wait for one another where they don't have a core each."""

from __future__ import annotations

from collections.abc import Iterator

from hasten.observe.cores import spin_text
from hasten.observe.cpu_load import BUSY
from hasten.study.finding import Finding
from hasten.study.script.records import ProcessRecord


def find(record: ProcessRecord) -> Iterator[Finding]:
    """spinning-threads, of one process on a CPU, where no variable says how OpenMP's threads wait."""
    threads, cores = int(record.raw.get("threads") or 1), int(record.raw.get("cores") or 0)
    others = float(record.listed_dict("load").get("others") or 0.0)
    if record.on_gpu or record.world > 1 or threads < 2 or not cores or record.raw.get("spin"):
        return
    if threads <= cores and (others <= BUSY or threads <= cores - others):
        return
    few = max(1, min(threads, round(cores - others)))
    yield record.finding(
        "spinning-threads",
        "",
        "torch's threads keep cores busy while they wait for one another, and do not all have a core",
        f"export {spin_text()} OMP_NUM_THREADS={few}, before Python starts",
        evidence=f"{threads} threads on {cores} cores, of which other programs used {others:.1f}",
    )
