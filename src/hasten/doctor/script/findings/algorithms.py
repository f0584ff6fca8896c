"""Findings on how the devices compute: algorithms, precision, single images, threads, the balance between ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from hasten.doctor.finding import Finding, ms
from hasten.doctor.script.records import ProcessRecord
from hasten.doctor.script.source import follows_device
from hasten.observe.cores import spin_text
from hasten.observe.cpu_load import BUSY

FIXED = 0.8
"""Share of the calls that must have the commonest shapes: the last batch of a pass may be smaller."""
SHAPES = 3
"""Number of different shapes up to which cuDNN's search pays, as each is searched once."""
MANY = 0.25
"""Shapes for each call from which cuDNN searches again and again."""
UNEQUAL = 1.25
"""Work of the busiest rank over the mean of all, from which the others wait for it noticeably."""
_CUDNN_BENCHMARK_OFF = Finding(
    "cudnn-benchmark-off", "cuDNN does not search for its fastest algorithm", "torch.backends.cudnn.benchmark = True"
)
_CUDNN_SEARCHES = Finding(
    "cudnn-benchmark-on", "cuDNN searches again with every new input shape", "benchmark = False, or crops of one size"
)
_NO_AUTOCAST = Finding(
    "no-autocast",
    "forward and backward run in float32, where a GPU's tensor cores stay idle",
    'with torch.autocast("cuda", dtype=torch.bfloat16): around the forward and the loss',
)
_DATA_PARALLEL = Finding(
    "data-parallel", "DataParallel copies the network in each step", "DistributedDataParallel, started by torchrun"
)
_DETERMINISTIC = Finding(
    "deterministic",
    "cuDNN is kept to deterministic algorithms, which also leaves its search for the fastest out",
    "torch.backends.cudnn.deterministic = False and benchmark = True, unless every run must repeat "
    "(MONAI: set_determinism(None); Lightning: deterministic=False)",
)


def find(record: ProcessRecord) -> Iterator[Finding]:
    """For a GPU deterministic, cudnn-benchmark-off (inputs of few shapes) and no-autocast."""
    if not record.cuda:
        return
    shapes, autocast = record.listed_dict("shapes"), record.listed_dict("autocast")
    if shapes and record.raw.get("convolutions"):
        count, usual = sum(shapes.values()), sorted(shapes, key=lambda name: shapes[name], reverse=True)
        if record.raw.get("cudnn_deterministic"):
            yield record.finding(_DETERMINISTIC, record.root_site)
        elif not record.raw.get("cudnn_benchmark") and sum(shapes[name] for name in usual[:SHAPES]) >= FIXED * count:
            evidence = f"{shapes[usual[0]]} of {count} inputs are {usual[0]}"
            yield record.finding(_CUDNN_BENCHMARK_OFF, record.root_site, evidence=evidence)
        elif record.raw.get("cudnn_benchmark") and len(shapes) >= MANY * count:
            evidence = f"{len(shapes)} shapes in {count} inputs, such as {', '.join(usual[:2])}"
            yield record.finding(_CUDNN_SEARCHES, record.root_site, evidence=evidence)
    # A note for a GPU that isn't here; on a GPU the experiment decides.
    sites = record.listed_dict("mode_sites")
    used = any(kind and count for kind, count in autocast.items()) or "cuda_autocast" in sites
    used = used or follows_device(sites.get("cuda_autocast_off", ""), "enabled")
    if not record.on_gpu and autocast and not used:
        yield record.finding(_NO_AUTOCAST, record.root_site, level="note")


def parallel(records: Sequence[ProcessRecord]) -> Iterator[Finding]:
    """data-parallel (a note with at most one GPU, where it has no effect) and unequal-ranks."""
    first, ranks = records[0], [record for record in records if record.measured]
    sites, gpus = first.listed_dict("mode_sites"), first.raw.get("cuda_devices", 0)
    if "data_parallel" in sites:
        level = "finding" if gpus > 1 or first.assume_cuda else "note"
        yield first.finding(_DATA_PARALLEL, sites["data_parallel"], evidence=f"{gpus} GPUs here", level=level)
    if len(ranks) < 2:
        return
    # One rank has more work than the others in most steps.
    measured = [(_work(record), record) for record in ranks]
    most, slow = max(measured, key=lambda pair: pair[0])
    mean = statistics.fmean(seconds for seconds, _ in measured)
    if mean > 0 and most >= UNEQUAL * mean:
        title = f"rank {slow.rank} has more work in a step than the others, which wait for it"
        cure = "give every rank the same number of samples of the same size: DistributedSampler, fixed crops"
        evidence = "work a step: " + ", ".join(f"rank {record.rank} {ms(seconds)}" for seconds, record in measured)
        text = Finding("unequal-ranks", title, cure)
        site = next((each["site"] for each in slow.training_loaders), slow.root_site)
        yield slow.finding(text, site, evidence=evidence, cost_s=most - mean)


def _work(record: ProcessRecord) -> float:
    """Median seconds of a step that a rank works or waits for data; waiting for other ranks doesn't count.

    On a CPU that is the thread's processor time. On a GPU, where the host's time says little, it is the forward pass,
    which has no collectives.
    """
    if record.on_gpu:
        steps = [step for step in record.measured if step.get("synced")] or record.measured
        return statistics.median(step["parts"].get("forward", 0.0) + step["parts"].get("wait", 0.0) for step in steps)
    return statistics.median(
        step["cpu"] - step.get("wait_cpu", 0.0) + step["parts"].get("wait", 0.0) for step in record.measured
    )


def spinning(record: ProcessRecord) -> Iterator[Finding]:
    """spinning-threads, of one process on a CPU, where no variable says how OpenMP's threads wait."""
    threads, cores = int(record.raw.get("threads") or 1), int(record.raw.get("cores") or 0)
    others = float(record.listed_dict("load").get("others") or 0.0)
    if record.on_gpu or record.world > 1 or threads < 2 or not cores or record.raw.get("spin"):
        return
    if threads <= cores and (others <= BUSY or threads <= cores - others):
        return
    few = max(1, min(threads, round(cores - others)))
    title = "torch's threads keep cores busy while they wait for one another, and do not all have a core"
    cure = f"export {spin_text()} OMP_NUM_THREADS={few}, before Python starts"
    evidence = f"{threads} threads on {cores} cores, of which other programs used {others:.1f}"
    yield record.finding(Finding("spinning-threads", title, cure), "", evidence=evidence)
