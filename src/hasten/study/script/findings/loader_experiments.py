"""Findings from the experiments on the loader: another number of workers, and work on the items that is repeated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.study.finding import Finding, ms
from hasten.study.script.records import place

LEAST = 1.05
"""Predicted speed-up of the step from which something is a finding; smaller gains are not reported."""
WORK = 0.5
"""Repeated work of a batch, as a share of a GPU's step, from which it is a note although workers hide it here."""
GPU_CORES, GPU_LEAST_S = 200, 0.005
"""Rough model of a GPU: as fast as this many cores, but a step takes at least this long."""
BEFORE_DRAW = 0.25
"""Share of an item that must come before its first random number: less is just reading a prepared file."""
HANDOVER_S = 0.0005
"""Seconds that the main process needs to receive a batch from a worker."""

_PARTS = {
    "before-draw": (
        "what an item does before it first draws a random number is done again in every epoch",
        "keep the result of that part, in memory or by numpy.save, and begin __getitem__ with what is random",
    ),
    "foreground": (
        "the crop searches the whole volume for its foreground at every call",
        "FgBgToIndicesd before the crop, whose fg_indices_key and bg_indices_key then name what it keeps",
    ),
}
"""Parts of an item that are the same each time: title and cure."""
Results = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """A model of the script's step: with workers the loader runs in parallel with the rest, without them before it.

    Validations and checkpoints are excluded, as they have findings of their own.
    """

    step_s: float
    batch_s: float | None
    """Seconds a batch from the loader as it is, beside the training."""
    compute_s: float
    workers: int
    rare_s: float = 0.0
    """Seconds of validations and checkpoints, spread over the steps."""

    def after(self, *, saved_s: float = 0.0, batch_s: float | None = None, workers: int | None = None) -> float:
        """Predicted seconds of a step whose compute takes `saved_s` less, or with another loader."""
        count = self.workers if workers is None else workers
        batch = self.batch_s if batch_s is None else batch_s
        compute = max(self.compute_s - saved_s, 0.02 * self.step_s)
        if batch is None:
            return max(self.step_s - saved_s, 0.05 * self.step_s)
        return max(max(compute, batch) if count else compute + batch, 0.05 * self.step_s)

    def gain(self, **changed: Any) -> float:
        return min(20.0, self.step_s / self.after(**changed))

    def gpu_s(self, cores: int) -> float:
        """Rough seconds of a step on a GPU, for notes on what would be slow there. cores: of this machine."""
        return max(GPU_LEAST_S, self.compute_s * cores / GPU_CORES)

    def overall(self, gain: float) -> float:
        """Convert a gain on the step into one on the whole training time."""
        return (self.step_s + self.rare_s) / (self.step_s / gain + self.rare_s)


def workers(results: Results, step: StepTimes) -> Finding | None:
    loader = results.get("workers") or {}
    times = {int(count): seconds for count, seconds in (loader.get("seconds") or {}).items()}
    if step.workers not in times:
        return None
    loops = measured_loops(results, step.workers)
    if loops:
        return _of_loops(loader, loops, step)
    predicted = {
        count: step.after(
            batch_s=_beside(results, step, times, count), workers=count, saved_s=0.0 if step.workers else -HANDOVER_S
        )
        for count in times
    }
    predicted[step.workers] = step.step_s
    best = min(count for count in times if predicted[count] <= 1.05 * min(predicted.values()))
    gain = min(20.0, step.step_s / predicted[best])
    if best <= step.workers or gain < LEAST:
        return None
    if step.workers and times[step.workers] < 1.2 * times[best]:
        return None
    table = ", ".join(f"{count}: {ms(seconds)}" for count, seconds in sorted(times.items()))
    name, title = too_few(step.workers)
    return Finding(
        name=name,
        title=title,
        where=place(loader.get("site", "")),
        cure=f"DataLoader(..., num_workers={best}, persistent_workers=True)",
        switch=f"workers={best}",
        evidence=f"seconds a batch by workers: {table}; a step takes {ms(step.step_s)}, {loader.get('cores')} cores",
        cost_s=max(0.0, step.step_s - predicted[best]),
        gain=gain,
    )


def measured_loops(results: Results, workers: int) -> dict[int, list[float]]:
    """Seconds of whole steps by number of workers; empty unless they were timed with other numbers than `workers` too.

    Each number was timed in two rounds; a single round of the present number proves nothing.
    """
    loops = {int(count): seconds for count, seconds in ((results.get("workers") or {}).get("loop") or {}).items()}
    return loops if len(loops) > 1 and len(loops.get(workers, ())) > 1 else {}


def too_many(workers: int, cores: int) -> tuple[str, str]:
    """Name and title."""
    return "many-workers", f"{workers} workers on {cores} cores take them from the network and from each other"


def too_few(workers: int) -> tuple[str, str]:
    """Name and title."""
    if workers == 0:
        return "no-workers", "the loader reads in the training's own process, which waits for each batch"
    return "few-workers", f"{workers} workers are too few for this dataset: the training waits for its batches"


def _beside(results: Results, step: StepTimes, times: dict[int, float], count: int) -> float:
    """Seconds of a batch while the training runs: on a CPU both share the cores."""
    batch = times[count] + (HANDOVER_S if count else 0.0)
    if step.workers and step.batch_s is not None:
        batch *= step.batch_s / times[step.workers]
    if count == 0 or results.get("device", "cpu") != "cpu" or 0 not in times:
        return batch
    loader = results["workers"]
    cores = max(1, int(loader.get("cores") or 1))
    threads = min(cores, int(loader.get("threads") or 1))
    work = times[0] * float(loader.get("cpu_share", 1.0)) + step.compute_s * threads
    return max(batch, work / cores)


def items(results: Results, step: StepTimes) -> Finding | None:
    items = results.get("items") or {}
    if items.get("kind") not in ("whole", "prefix", *_PARTS):
        return None
    size, count, each = int(items.get("batch_size") or 1), int(items.get("items") or 0), items["cached_s"]
    alone = ((results.get("workers") or {}).get("seconds") or {}).get(str(step.workers), 0.0)
    lanes = max(1, step.workers)
    share = each * size / lanes / max(alone, items["item_s"] * size / lanes, 1e-9)
    if step.batch_s is None:
        return None
    after = step.after(batch_s=step.batch_s * (1 - min(1.0, share)))
    gain = min(20.0, step.step_s / after)
    # What workers hide here costs nothing, but it would with a GPU's shorter step. Reading a prepared file is fine.
    sound = results.get("device") == "cuda" or items["kind"] == "before-draw"
    least_s = math.inf if sound else WORK * step.gpu_s(int(results.get("cores") or 1))
    if gain < LEAST and each * size / lanes < least_s:
        return None
    cost_s = max(0.0, step.step_s - after)
    effect: dict[str, Any] = {"level": "note"} if gain < LEAST else {"cost_s": cost_s, "gain": gain}
    where = place(items.get("site", ""))
    if items["kind"] in _PARTS:
        title, cure = _PARTS[items["kind"]]
        evidence = f"{ms(each)} of an item's {ms(items['item_s'])}, {items.get('batch_size')} items a batch"
        if items["kind"] == "before-draw" and each < BEFORE_DRAW * items["item_s"]:
            return None
        return Finding(name="uncached-items", title=title, where=where, cure=cure, evidence=evidence, **effect)
    whole = items["kind"] == "whole"
    num_bytes = items.get("bytes", 0) * count
    fits = num_bytes < 0.5 * (items.get("free_bytes") or 0)
    room = f"all {count} results take {num_bytes / 2**20:.0f} MiB and would be made once, in {ms(each * count)}"
    evidence = f"{ms(each)} an item that gives the same result each time, {size} items a batch; {room}"
    names = items.get("transforms") or ()
    if names:
        evidence += f"; the transforms before the first random one: {', '.join(names)}"
    return Finding(
        name="uncached-items" if whole else "uncached-transforms",
        title="each item is made anew in every epoch, with the same result"
        if whole
        else f"{len(names)} of {items.get('all_transforms')} transforms do the same work in every epoch",
        where=where,
        cure=_cache_cure(whole and not names, fits),
        evidence=evidence,
        **effect,
    )


def _cache_cure(plain: bool, fits: bool) -> str:
    if plain:
        if fits:
            return "make the items once: items = [dataset[i] for i in range(len(dataset))]; DataLoader(items, ...)"
        return "make the items once, into files: numpy.save each, and numpy.load(..., mmap_mode='r') in __getitem__"
    if fits:
        return "monai.data.CacheDataset(data, transform, cache_rate=1.0) in place of Dataset(data, transform)"
    return "monai.data.PersistentDataset(data, transform, cache_dir='cache') in place of Dataset(data, transform)"


def _of_loops(loader: Results, loops: dict[int, list[float]], step: StepTimes) -> Finding | None:
    """The finding from whole steps, measured interleaved, which include that workers take cores from the network."""
    now, cores = step.workers, int(loader.get("cores") or 1)
    usual = {count: statistics.median(times) for count, times in loops.items()}
    best = min(count for count in usual if usual[count] <= 1.05 * min(usual.values()))
    rounds = min(len(loops[now]), len(loops[best]))
    least = min(loops[now][number] / loops[best][number] for number in range(rounds))
    proven = best != now and rounds > 1 and least > LEAST
    if not proven and (now <= cores or all(_slower(loops[count], loops[now]) for count in loops if count < now)):
        return None
    gain = min(20.0, usual[now] / usual[best])
    table = ", ".join(f"{count}: {ms(seconds)}" for count, seconds in sorted(usual.items()))
    name, title = too_few(now)
    if best < now or not proven:
        name, title = too_many(now, cores)
    suggested = best if proven else min(now, cores)
    return Finding(
        name=name,
        title=title,
        where=place(loader.get("site", "")),
        cure=f"DataLoader(..., num_workers={suggested}{', persistent_workers=True' if suggested else ''})",
        evidence=f"seconds of a whole step by workers, {rounds} interleaved rounds: {table}; {cores} cores",
        cost_s=step.step_s * (1 - 1 / gain) if proven else None,
        gain=gain if proven else None,
        level="finding" if proven else "note",
        switch=f"workers={suggested}" if proven else "",
    )


def _slower(times: list[float], others: list[float]) -> bool:
    """Whether `times` are slower in every round."""
    return all(one > LEAST * other for one, other in zip(times, others, strict=False))
