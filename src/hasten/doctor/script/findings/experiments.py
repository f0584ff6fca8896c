"""Findings from the experiments in the script's process: faults that a measured gain proves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hasten.doctor.finding import AS_LONG, DOUBLED, FASTER, Edit, Finding, ms
from hasten.doctor.script.records import ProcessRecord, assumption, place
from hasten.observe.cpu_load import BUSY

TOY_S = 0.015
"""Seconds of forward and backward on a CPU below which call overhead dominates precision and layout."""
AMID_LOAD = 1.5
"""Gain from which a finding is trusted on a busy machine; smaller gains become notes."""
ROUNDED, EXACT = 0.05, 1e-3
"""Largest differences of the outputs, relative to the largest output, by another precision and by the same."""
HIDDEN = 0.05
"""Share of a step spent waiting below which workers count as fast enough."""
BATCH_ROOM = 0.3
"""Share of the memory that must be free before a larger batch is advised."""
LEAST = 1.05
"""Predicted speed-up of the step from which something is a finding; smaller gains are not reported."""
BEFORE_DRAW, READ_S = 0.25, 0.002
"""Share of an item that must come before its first random number, and seconds: less just reads a prepared file."""

LOADERS = ("DataLoader", "ThreadDataLoader")
_CONVOLUTIONS = tuple(f"Conv{transposed}{size}d" for transposed in ("", "Transpose") for size in (1, 2, 3))

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
    shared: bool = False
    """Whether workers take cores on which the network computes."""
    gpu_rest_s: float | None = None
    """Seconds but for the wait for its batch on a GPU that isn't here, where it is judged for one."""

    def after(self, *, saved_s: float = 0.0, batch_s: float | None = None) -> float:
        """Predicted seconds of a step whose compute takes `saved_s` less, or whose batches take `batch_s`."""
        batch = self.batch_s if batch_s is None else batch_s
        compute = max(self.compute_s - saved_s, 0.02 * self.step_s)
        if batch is None:
            return max(self.step_s - saved_s, 0.05 * self.step_s)
        return max(max(compute, batch) if self.workers else compute + batch, 0.05 * self.step_s)

    def with_rare(self, gain: float) -> float:
        """The gain of the whole training time of a gain of the step."""
        return (self.step_s + self.rare_s) / (self.step_s / gain + self.rare_s)


def find(record: ProcessRecord) -> list[Finding]:
    """Findings of the experiments of a record; none where none was made.

    The interval of the measured rounds must prove a finding. It becomes a note on a busy machine, unless the gain is
    large, and if long validations leave too little of the gain.
    """
    step, results = step_of(record), record.experiments
    if step is None:
        return []
    rules = {"workers": workers, "items": items, "autocast": _autocast, "channels_last": _layout}
    rules |= {"doubled_batch": _batch, "conv_bias": _biases}
    findings = []
    for name, rule in rules.items():
        finding, own_clock = rule(results, step), (results.get(name) or {}).get("own_clock")
        if finding is not None:
            findings.append(_tempered(finding, step, 0.0 if own_clock else results.get("others") or 0.0))
    return findings


def _tempered(finding: Finding, step: StepTimes, others: float) -> Finding:
    """The finding with its gain on the whole training time, as a note if a busy machine makes it doubtful."""
    if finding.gain is not None and step.rare_s:
        gain, interval = step.with_rare(finding.gain), finding.interval
        if interval is not None:
            interval = step.with_rare(interval[0]), step.with_rare(interval[1])
        finding = replace(finding, gain=gain, interval=interval, level="note" if gain < LEAST else finding.level)
    if others <= BUSY or finding.level == "note" or (finding.gain or 0.0) >= AMID_LOAD:
        return finding
    evidence = f"{finding.evidence}; doubtful, as other programs used {others:.1f} cores meanwhile: run it again alone"
    return replace(finding, level="note", evidence=evidence)


def step_of(record: ProcessRecord) -> StepTimes | None:
    """The model of a step from its times and the loader's; None without measured steps or experiments.

    Means, as workers deliver in bursts: most steps don't wait, and some wait long.
    """
    loader, step_s = record.experiments.get("workers"), record.train_s
    if loader is None or step_s <= 0:
        return None
    count = int(loader.get("now") or 0)
    alone = (loader.get("seconds") or {}).get(str(count))
    wait_s = min(record.part("wait"), 0.98 * step_s)
    hidden = count > 0 and wait_s < HIDDEN * step_s
    # If the loader is the bottleneck, a batch takes as long as a step, whatever it takes alone.
    batch_s: float | None = wait_s if count == 0 else step_s
    if hidden:
        batch_s = None if alone is None else min(alone, step_s)
    compute_s = step_s if hidden else step_s - wait_s
    free = int(loader.get("cores") or 1) - int(record.raw.get("threads") or 1)
    shared = count > max(0, free) and not record.on_gpu
    more: Any = {"rare_s": record.step_s - step_s, "gpu_rest_s": record.rest_s if record.gpu_assumed else None}
    return StepTimes(step_s=step_s, batch_s=batch_s, compute_s=compute_s, workers=count, shared=shared, **more)


def _arm(results: Results, name: str, low: float) -> dict[str, Any] | None:
    """An experiment's result if the lower end of its gain is above `low`."""
    arm = results.get(name) or {}
    return dict(arm) if arm.get("low", 0.0) > low else None


def _weighty(results: Results, name: str, agree: float) -> dict[str, Any] | None:
    """The arm of another precision or layout if it is right and clearly faster, and not for toy networks."""
    arm = _arm(results, name, LEAST)
    if arm is None or arm["gain"] < FASTER or arm.get("difference", 1.0) > agree:
        return None
    return None if arm.get("device", "cpu") == "cpu" and arm["base_s"] < TOY_S else arm


def _autocast(results: Results, step: StepTimes) -> Finding | None:
    arm = _weighty(results, "autocast", ROUNDED)
    if arm is None:
        return None
    device, dtype = arm.get("device", "cuda"), arm["dtype"]
    scaler = ", with torch.amp.GradScaler for the backward" if dtype == "float16" else ""
    return _of_arm(
        arm,
        step,
        name="no-autocast",
        title="forward and backward run in float32 where this machine gains by a lower precision",
        cure=f'with torch.autocast("{device}", dtype=torch.{dtype}): around the forward and the loss{scaler}',
        also=f"; outputs differ by {arm['difference']:.1%} of the largest",
    )


def _layout(results: Results, step: StepTimes) -> Finding | None:
    arm = _weighty(results, "channels_last", EXACT)
    if arm is None:
        return None
    layout = arm["layout"]
    return _of_arm(
        arm,
        step,
        name="no-channels-last",
        title="the convolutions run in the plain memory layout where this machine gains by channels_last",
        cure=f"net = net.to(memory_format=torch.{layout}); x = x.to(memory_format=torch.{layout})",
        also=f"; outputs agree to {arm['difference']:.1g}",
    )


def wall_s(arm: dict[str, Any]) -> float:
    """Seconds of forward and backward as they are, beside the other programs of then."""
    return float(arm["base_s"] * arm.get("slowed", 1.0))


def _of_arm(arm: dict[str, Any], step: StepTimes, *, also: str, **texts: str) -> Finding | None:
    """A finding if the arm's gain is worthwhile. also: more evidence, in words."""
    saved_s, *ends = (wall_s(arm) * (1 - 1 / arm[end]) for end in ("gain", "low", "high"))
    gain, low, high = (min(20.0, step.step_s / step.after(saved_s=each)) for each in (saved_s, *ends))
    if gain < LEAST:
        return None
    clock = " of processor time" if arm.get("own_clock") else ""
    evidence = f"forward and backward take {ms(arm['base_s'])}{clock} now and {ms(arm['arm_s'])} so: {arm['gain']:.2f} "
    evidence += f"times as fast ({arm['low']:.2f} to {arm['high']:.2f} over {arm['rounds']} rounds){also}; "
    evidence += f"a step takes {ms(step.step_s)}"
    where = place(arm.get("site", ""))
    return Finding(where=where, evidence=evidence, cost_s=saved_s, gain=gain, interval=(low, high), **texts)  # type: ignore[arg-type]


def _batch(results: Results, step: StepTimes) -> Finding | None:
    arm = _arm(results, "doubled_batch", 2 / DOUBLED)
    room = None if arm is None else arm.get("free_share")
    if arm is None or (room is not None and room < BATCH_ROOM):
        return None
    gain, low, high = (_doubled(step, arm, end) for end in ("gain", "low", "high"))
    if gain < 1.15:
        return None
    size = arm["size"]
    name, title = "small-batch", f"a batch of {size} leaves the machine idle: fixed costs rule the step"
    cure = f"batch_size={2 * size} or more (and the learning rate with it)"
    if arm["arm_s"] < AS_LONG * arm["base_s"]:
        name, title = "slow-kernels", f"torch takes slower kernels for a batch of {size} than for one of {2 * size}"
        cure = f"batch_size={2 * size}, or the channels_last layout, for which it takes others"
    evidence = f"forward and backward take {ms(arm['base_s'])} on {size} samples and {ms(arm['arm_s'])} on {2 * size}: "
    evidence += f"{arm['gain']:.2f} times the samples a second ({arm['low']:.2f} to {arm['high']:.2f}); "
    evidence += "free memory unknown" if room is None else f"{room:.0%} of the memory is free"
    where = place((results.get("workers") or {}).get("site") or arm.get("site", ""))
    cost_s = step.step_s * (1 - 1 / gain)
    return Finding(name, title, cure, where=where, evidence=evidence, cost_s=cost_s, gain=gain, interval=(low, high))


def _doubled(step: StepTimes, arm: dict[str, Any], end: str) -> float:
    """Gain of the step in samples by one of twice as many, at an end of what was measured of its compute."""
    more = wall_s(arm) * (2 / arm[end] - 1)
    after = step.step_s + max(0.0, more)
    if step.batch_s is not None:
        after = replace(step, batch_s=2 * step.batch_s).after(saved_s=-more)
    return min(2.0, 2 * step.step_s / after)


def _biases(results: Results, step: StepTimes) -> Finding | None:
    """A note: the bias is useless in any case, but may cost nothing on this hardware."""
    arm = results.get("conv_bias") or {}
    names = arm.get("modules") or []
    if not names or arm.get("difference", 1.0) > EXACT:
        return None
    sites = [place(site) for site in dict.fromkeys(arm.get("sites") or []) if site]
    listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    evidence = f"modules {listed}" + (f"; also at {', '.join(sites[1:5])}" if len(sites) > 1 else "")
    title = f"{len(names)} of the convolutions add a bias that the norm right after takes away"
    edit = Edit(_CONVOLUTIONS, (("bias", "False"),))
    where = sites[0] if sites else place(arm.get("site", ""))
    cure = "bias=False for the convolutions before a norm"
    return Finding("conv-bias-before-norm", title, cure, edit, where, evidence=evidence, level="note")


# The loader


def workers(results: Results, step: StepTimes) -> Finding | None:
    """The finding from whole steps, measured interleaved, which include that workers take cores from the network."""
    loader = results.get("workers") or {}
    loops = measured_loops(results, step.workers)
    if not loops:
        return None
    now, cores = step.workers, int(loader.get("cores") or 1)
    usual = {count: statistics.median(times) for count, times in loops.items()}
    best = min(count for count in usual if usual[count] <= 1.05 * min(usual.values()))
    ratios = [present / other for present, other in zip(loops[now], loops[best], strict=False)]
    if best == now or len(ratios) < 2 or min(ratios) <= LEAST:
        return None
    if step.gpu_rest_s is not None and best < now <= cores:
        return None  # A network on a GPU leaves them the cores.
    gain = min(20.0, usual[now] / usual[best])
    table = ", ".join(f"{count}: {ms(seconds)}" for count, seconds in sorted(usual.items()))
    name, title = too_many(now, cores) if best < now else too_few(now)
    return Finding(
        name,
        title,
        *with_workers(best),
        where=place(loader.get("site", "")),
        evidence=f"seconds of a whole step by workers, {len(ratios)} interleaved rounds: {table}; {cores} cores",
        cost_s=step.step_s * (1 - 1 / gain),
        gain=gain,
        interval=(min(20.0, *ratios), min(20.0, max(*ratios, gain))),
    )


def measured_loops(results: Results, workers: int) -> dict[int, list[float]]:
    """Seconds of whole steps by number of workers; empty unless they were timed with other numbers than `workers` too.

    Each number was timed in two rounds; a single round of the present number proves nothing.
    """
    loops = {int(count): seconds for count, seconds in ((results.get("workers") or {}).get("loop") or {}).items()}
    return loops if len(loops) > 1 and len(loops.get(workers, ())) > 1 else {}


def with_workers(workers: int) -> tuple[str, Edit | None]:
    """The cure by so many worker processes, in words and as a change; without them other arguments may have to go."""
    keywords = (("num_workers", str(workers)), ("persistent_workers", "True"))
    edit = Edit(LOADERS, keywords if workers else keywords[:1])
    return edit.text, edit if workers else None


def too_few(workers: int) -> tuple[str, str]:
    """Name and title."""
    if workers == 0:
        return "no-workers", "the loader reads in the training's own process, which waits for each batch"
    return "few-workers", f"{workers} workers are too few for this dataset: the training waits for its batches"


def too_many(workers: int, cores: int) -> tuple[str, str]:
    """Name and title."""
    return "many-workers", f"{workers} workers on {cores} cores take them from the network and from each other"


def items(results: Results, step: StepTimes) -> Finding | None:
    items, tried = results.get("items") or {}, results.get("workers") or {}
    kind, each, item_s = items.get("kind"), items.get("cached_s", 0.0), items.get("item_s", 0.0)
    if not each or (kind == "before-draw" and each < max(BEFORE_DRAW * item_s, READ_S)):
        return None
    size, lanes = int(items.get("batch_size") or 1), max(1, step.workers)
    alone = (tried.get("seconds") or {}).get(str(step.workers), 0.0)
    share = min(1.0, each * size / lanes / max(alone, item_s * size / lanes))
    name, title, cure, evidence = _same_work(items, f"{ms(each)} an item", size)
    finding = Finding(name, title, cure, where=place(items.get("site", "")), evidence=evidence)
    after = step.step_s if step.batch_s is None else step.after(batch_s=step.batch_s * (1 - share))
    if step.step_s >= LEAST * after:
        return replace(finding, cost_s=step.step_s - after, gain=min(20.0, step.step_s / after))
    if step.gpu_rest_s is not None:
        # Workers that are fast enough here may be too slow for a GPU.
        batch_s = min(alone or step.batch_s or 0.0, step.step_s)
        there = replace(step, step_s=batch_s + step.gpu_rest_s, batch_s=batch_s, compute_s=step.gpu_rest_s)
        gains = there.after() >= LEAST * there.after(batch_s=batch_s * (1 - share))
        return replace(finding, level="note", evidence=evidence + assumption(step.gpu_rest_s)) if gains else None
    # Work that workers hide takes the cores of a network on a CPU all the same.
    cost_s = each * size * items.get("work_s", item_s) / item_s / (tried.get("cores") or 1)
    if not step.shared or kind == "before-draw" or cost_s < (LEAST - 1) * step.step_s:
        return None
    evidence += "; workers take the network's cores for it"
    return replace(finding, level="note", cost_s=cost_s, evidence=evidence)


def _same_work(items: dict[str, Any], cost: str, size: int) -> tuple[str, str, str, str]:
    """Name, title, cure and evidence of work that gives the same result each time. size: items of a batch."""
    if items["kind"] == "before-draw":
        title = "what an item does before it first draws a random number is done again in every epoch"
        cure = "keep the result of that part, in memory or by numpy.save, and begin __getitem__ with what is random"
        return "uncached-items", title, cure, f"{cost} of {ms(items['item_s'])}, {size} items a batch"
    count = int(items.get("items") or 0)
    num_bytes = items.get("bytes", 0) * count
    fits = num_bytes < 0.5 * (items.get("free_bytes") or 0)
    evidence = f"{cost} that gives the same result each time, {size} items a batch; all {count} results take "
    evidence += f"{num_bytes / 2**20:.0f} MiB and would be made once, in {ms(items['cached_s'] * count)}"
    if items["kind"] == "whole":
        cure = "make the items once, into files: numpy.save each, and numpy.load(..., mmap_mode='r') in __getitem__"
        if fits:
            cure = "make the items once: items = [dataset[i] for i in range(len(dataset))]; DataLoader(items, ...)"
        return "uncached-items", "each item is made anew in every epoch, with the same result", cure, evidence
    names = items["transforms"]
    evidence += f"; the transforms before the first random one: {', '.join(names)}"
    title = f"{len(names)} of {items.get('all_transforms')} transforms do the same work in every epoch"
    kept = "CacheDataset(data, transform, cache_rate=1.0)"
    if not fits:
        kept = "PersistentDataset(data, transform, cache_dir='cache')"
    return "uncached-transforms", title, f"monai.data.{kept} in place of Dataset(data, transform)", evidence
