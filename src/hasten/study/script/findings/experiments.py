"""What the experiments in the script's process say: each fault that a measured gain proves, with its cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.observe.load import BUSY
from hasten.study.finding import Finding
from hasten.study.script.findings.words import place
from hasten.study.words import ms

LEAST = 1.05
"""Predicted factor on the whole step from which something is a finding: what less would bring is left unsaid."""
CLEAR = 1.10
"""Factor on forward and backward, whose interval must lie above `LEAST`, for another precision or layout."""
TOY_S = 0.015
"""Seconds of forward and backward on a CPU below which calls rule, so that precision and layout aren't the point."""
SMALL_BATCH = 1.3
"""Samples a second on the doubled batch over those now, the lower end of the interval."""
AMID_LOAD = 1.5
"""While others use the machine, only such a factor is believed; below it a finding is told as a note."""
AGREE = {"autocast": 0.05, "exact": 1e-3}
"""Largest difference of the outputs, relative to the largest output."""
HIDDEN = 0.05
"""Share of a step spent waiting below which workers count as fast enough."""
HANDOVER_S = 0.0005
"""Seconds of the main process to take a batch over from a worker."""
BATCH_ROOM = 0.3
"""Share of the memory that must be free before a larger batch is advised."""

Found = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The script's step as far as it is known: with workers the loader runs beside the rest, without before it."""

    step_s: float
    batch_s: float | None
    """Seconds a batch from the loader as it is, beside the training."""
    compute_s: float
    workers: int

    def after(self, *, saved_s: float = 0.0, batch_s: float | None = None, workers: int | None = None) -> float:
        """Predicted seconds of a step whose compute takes `saved_s` less, or whose loader is another."""
        count = self.workers if workers is None else workers
        batch = self.batch_s if batch_s is None else batch_s
        compute = max(self.compute_s - saved_s, 0.02 * self.step_s)
        if batch is None:
            return max(self.step_s - saved_s, 0.05 * self.step_s)
        return max(max(compute, batch) if count else compute + batch, 0.05 * self.step_s)

    def gain(self, **changed: Any) -> float:
        return min(20.0, self.step_s / self.after(**changed))


def findings(record: Any) -> list[Finding]:
    """Findings of a `Record`, or of the experiments' dict itself; none where there were no steps to judge by.

    Nothing is found where the interval of the measured rounds doesn't prove it, and what is found while other programs
    use the machine is a note unless it is gross.
    """
    tried: Found = record if isinstance(record, Mapping) else record.experiments
    step = step_of(tried)
    if step is None:
        return []
    made = [rule(tried, step) for rule in (_workers, _items, _autocast, _layout, _batch, _fused, _biases)]
    others = tried.get("others") or 0.0
    return [_amid_load(finding, others) for finding in made if finding is not None]


def costs(record: Any) -> dict[str, float]:
    """Measured seconds a step of faults that are found by watching: "zero-grad-memset", "anomaly-detection",
    "cudnn-benchmark". Only where the interval says that there is a cost."""
    tried: Found = record if isinstance(record, Mapping) else record.experiments
    names = {"zero_grad": "zero-grad-memset", "anomaly": "anomaly-detection", "cudnn_benchmark": "cudnn-benchmark"}
    arms = {name: _arm(tried, key, 1.0) for key, name in names.items()}
    return {name: arm["base_s"] - arm["arm_s"] for name, arm in arms.items() if arm is not None}


def step_of(tried: Found) -> Step | None:
    """The step's model out of the loader's and the network's own times; None without measured steps."""
    step_s = tried.get("step_s")
    if not step_s or step_s <= 0:
        return None
    loader = tried.get("workers") or {}
    count = int(loader.get("now") or 0)
    alone = (loader.get("seconds") or {}).get(str(count))
    wait_s = tried.get("wait_s")
    if wait_s is None:
        if alone is None:
            return Step(step_s=step_s, batch_s=None, compute_s=step_s, workers=count)
        wait_s = min(alone, 0.98 * step_s) if count == 0 else 0.0 if alone < 0.9 * step_s else 0.5 * step_s
    wait_s = min(wait_s, 0.98 * step_s)
    if count == 0:
        return Step(step_s=step_s, batch_s=wait_s, compute_s=step_s - wait_s, workers=0)
    if wait_s < HIDDEN * step_s:
        return Step(
            step_s=step_s, batch_s=None if alone is None else min(alone, step_s), compute_s=step_s, workers=count
        )
    # The loader rules: batches come as fast as steps are made, whatever they take with nobody computing beside them.
    return Step(step_s=step_s, batch_s=step_s, compute_s=step_s - wait_s, workers=count)


def _arm(tried: Found, name: str, low: float) -> dict[str, Any] | None:
    """An experiment's result if the lower end of its gain is above `low`."""
    arm = tried.get(name) or {}
    return dict(arm) if arm.get("low", 0.0) > low else None


def _weighty(tried: Found, name: str) -> dict[str, Any] | None:
    """The same for another precision or layout of a network that isn't a toy."""
    arm = _arm(tried, name, LEAST)
    if arm is None or arm["gain"] < CLEAR:
        return None
    return None if arm.get("device", "cpu") == "cpu" and arm["base_s"] < TOY_S else arm


def _told(arm: Found, what: str) -> str:
    return (
        f"{what} {ms(arm['base_s'])} now and {ms(arm['arm_s'])} so: {arm['gain']:.2f} times as fast "
        f"({arm['low']:.2f} to {arm['high']:.2f} over {arm['rounds']} rounds in turns)"
    )


def _amid_load(finding: Finding, others: float) -> Finding:
    if others <= BUSY or finding.level == "note" or (finding.gain or 0.0) >= AMID_LOAD:
        return finding
    told = f"{finding.evidence}; doubtful, as other programs used {others:.1f} cores meanwhile: run it again alone"
    values = {name: getattr(finding, name) for name in finding.__slots__}
    return Finding(**{**values, "level": "note", "evidence": told})


def _workers(tried: Found, step: Step) -> Finding | None:
    loader = tried.get("workers") or {}
    times = {int(count): seconds for count, seconds in (loader.get("seconds") or {}).items()}
    if step.workers not in times:
        return None
    predicted = {
        count: step.after(
            batch_s=_beside(tried, step, times, count), workers=count, saved_s=0.0 if step.workers else -HANDOVER_S
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
    none = step.workers == 0
    return Finding(
        name="no-workers" if none else "few-workers",
        title="the loader reads in the training's own process, which waits for each batch"
        if none
        else f"{step.workers} workers are too few for this dataset: the training waits for its batches",
        where=place(loader.get("site", "")),
        cure=f"DataLoader(..., num_workers={best}, persistent_workers=True)",
        evidence=f"seconds a batch by workers: {table}; a step takes {ms(step.step_s)}, {loader.get('cores')} cores",
        cost_s=max(0.0, step.step_s - predicted[best]),
        gain=gain,
    )


def _beside(tried: Found, step: Step, times: dict[int, float], count: int) -> float:
    """Seconds a batch with the training beside it: on a CPU both share the cores."""
    batch = times[count] + (HANDOVER_S if count else 0.0)
    if step.workers and step.batch_s is not None:
        batch *= step.batch_s / times[step.workers]
    if count == 0 or tried.get("device", "cpu") != "cpu" or 0 not in times:
        return batch
    loader = tried["workers"]
    cores = max(1, int(loader.get("cores") or 1))
    threads = min(cores, int(loader.get("threads") or 1))
    work = times[0] * float(loader.get("cpu_share", 1.0)) + step.compute_s * threads
    return max(batch, work / cores)


def _items(tried: Found, step: Step) -> Finding | None:
    items = tried.get("items") or {}
    if items.get("kind") not in ("whole", "prefix"):
        return None
    size, count, each = int(items.get("batch_size") or 1), int(items.get("items") or 0), items["cached_s"]
    alone = ((tried.get("workers") or {}).get("seconds") or {}).get(str(step.workers), 0.0)
    lanes = max(1, step.workers)
    share = each * size / lanes / max(alone, items["item_s"] * size / lanes, 1e-9)
    if step.batch_s is None:
        return None
    after = step.after(batch_s=step.batch_s * (1 - min(1.0, share)))
    gain = min(20.0, step.step_s / after)
    if gain < LEAST:
        return None
    whole = items["kind"] == "whole"
    held = items.get("bytes", 0) * count
    fits = held < 0.5 * (items.get("free_bytes") or 0)
    room = f"all {count} results take {held / 2**20:.0f} MiB and would be made once, in {ms(each * count)}"
    evidence = f"{ms(each)} an item that gives the same result each time, {size} items a batch; {room}"
    names = items.get("transforms")
    if names:
        evidence += f"; the transforms before the first random one: {', '.join(names)}"
    return Finding(
        name="uncached-items" if whole else "uncached-transforms",
        title="each item is made anew in every epoch, with the same result"
        if whole
        else f"{len(names or ())} of {items.get('all_transforms')} transforms do the same work in every epoch",
        where=place(items.get("site", "")),
        cure=_cache_cure(whole and not names, fits),
        evidence=evidence,
        cost_s=max(0.0, step.step_s - after),
        gain=gain,
    )


def _cache_cure(plain: bool, fits: bool) -> str:
    if plain:
        if fits:
            return "make the items once: items = [dataset[i] for i in range(len(dataset))]; DataLoader(items, ...)"
        return "make the items once, into files: numpy.save each, and numpy.load(..., mmap_mode='r') in __getitem__"
    if fits:
        return "monai.data.CacheDataset(data, transform, cache_rate=1.0) in place of Dataset(data, transform)"
    return "monai.data.PersistentDataset(data, transform, cache_dir='cache') in place of Dataset(data, transform)"


def _autocast(tried: Found, step: Step) -> Finding | None:
    arm = _weighty(tried, "autocast")
    if arm is None or arm.get("difference", 1.0) > AGREE["autocast"]:
        return None
    device, dtype = arm.get("device", "cuda"), arm["dtype"]
    scaler = ", with torch.amp.GradScaler for the backward" if dtype == "float16" else ""
    return _of_arm(
        arm,
        step,
        name="no-autocast",
        title="forward and backward run in float32 where this machine gains by a lower precision",
        cure=f'with torch.autocast("{device}", dtype=torch.{dtype}): around the forward and the loss{scaler}',
        what="forward and backward take",
        also=f"; outputs differ by {arm['difference']:.1%} of the largest",
    )


def _layout(tried: Found, step: Step) -> Finding | None:
    arm = _weighty(tried, "channels_last")
    if arm is None or arm.get("difference", 1.0) > AGREE["exact"]:
        return None
    layout = arm["layout"]
    return _of_arm(
        arm,
        step,
        name="no-channels-last",
        title="the convolutions run in the plain memory layout where this machine gains by channels_last",
        cure=f"net = net.to(memory_format=torch.{layout}); x = x.to(memory_format=torch.{layout})",
        what="forward and backward take",
        also=f"; outputs agree to {arm['difference']:.1g}",
    )


def _fused(tried: Found, step: Step) -> Finding | None:
    arm = _arm(tried, "fused", CLEAR)
    if arm is None or arm.get("difference", 1.0) > AGREE["exact"]:
        return None
    return _of_arm(
        arm,
        step,
        name="unfused-optimizer",
        title="the optimizer updates its tensors one by one or in groups, where one fused kernel is faster",
        cure=f"torch.optim.{arm['class']}(..., fused=True)",
        what=f"a step of the optimizer ({arm['tensors']} tensors) takes",
        also=f"; weights agree to {arm['difference']:.1g}",
    )


def _of_arm(arm: dict[str, Any], step: Step, *, what: str, also: str, **named: str) -> Finding | None:
    saved = arm["base_s"] - arm["arm_s"]
    gain = step.gain(saved_s=saved)
    if gain < LEAST:
        return None
    evidence = f"{_told(arm, what)}{also}; a step takes {ms(step.step_s)}"
    return Finding(where=place(arm.get("site", "")), evidence=evidence, cost_s=saved, gain=gain, **named)  # type: ignore[arg-type]


def _batch(tried: Found, step: Step) -> Finding | None:
    arm = _arm(tried, "doubled_batch", SMALL_BATCH)
    room = None if arm is None else arm.get("free_share")
    if arm is None or (room is not None and room < BATCH_ROOM):
        return None
    double = Step(
        step_s=step.step_s,
        batch_s=None if step.batch_s is None else 2 * step.batch_s,
        compute_s=step.compute_s,
        workers=step.workers,
    )
    more = arm["arm_s"] - arm["base_s"]
    gain = min(2.0, 2 * step.step_s / double.after(saved_s=-more))
    if step.batch_s is None:
        gain = min(2.0, 2 * step.step_s / (step.step_s + max(0.0, more)))
    if gain < 1.15:
        return None
    size = arm["size"]
    return Finding(
        name="small-batch",
        title=f"a batch of {size} leaves the machine idle: fixed costs rule the step",
        where=place((tried.get("workers") or {}).get("site") or arm.get("site", "")),
        cure=f"batch_size={2 * size} or more (and the learning rate with it)",
        evidence=f"forward and backward take {ms(arm['base_s'])} on {size} samples and {ms(arm['arm_s'])} on "
        f"{2 * size}: {arm['gain']:.2f} times the samples a second ({arm['low']:.2f} to {arm['high']:.2f}); "
        + (f"{room:.0%} of the memory is free" if room is not None else "free memory unknown"),
        cost_s=step.step_s * (1 - 1 / gain),
        gain=gain,
    )


def _biases(tried: Found, step: Step) -> Finding | None:
    """A note where no gain shows: it is idle work in any case, but other hardware than this may not feel it."""
    arm = tried.get("conv_bias") or {}
    names = arm.get("modules") or []
    if not names or arm.get("difference", 1.0) > AGREE["exact"]:
        return None
    sites = [place(site) for site in dict.fromkeys(arm.get("sites") or []) if site]
    proven = arm.get("low", 0.0) > 1.02 and step.gain(saved_s=arm["base_s"] - arm["arm_s"]) >= 1.02
    evidence = _told(arm, "forward and backward take") if "gain" in arm else "not timed: " + str(arm.get("skipped", ""))
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return Finding(
        name="conv-bias-before-norm",
        title=f"{len(names)} of the convolutions add a bias that the norm right after takes away",
        where=sites[0] if sites else place(arm.get("site", "")),
        cure="bias=False for the convolutions before a norm",
        evidence=f"modules {shown}; {evidence}" + (f"; also at {', '.join(sites[1:5])}" if len(sites) > 1 else ""),
        cost_s=arm["base_s"] - arm["arm_s"] if proven else None,
        gain=step.gain(saved_s=arm["base_s"] - arm["arm_s"]) if proven else None,
        level="finding" if proven else "note",
    )
