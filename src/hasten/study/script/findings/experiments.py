"""Findings from the experiments in the script's process: faults that a measured gain proves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hasten.observe.cpu_load import BUSY
from hasten.study.finding import DOUBLED, FASTER, Finding, ms
from hasten.study.script.findings.loader_experiments import LEAST, Results, StepTimes, items, workers
from hasten.study.script.records import place

TOY_S = 0.015
"""Seconds of forward and backward on a CPU below which call overhead dominates precision and layout."""
AMID_LOAD = 1.5
"""Gain from which a finding is trusted on a busy machine; smaller gains become notes."""
AGREE = {"autocast": 0.05, "exact": 1e-3}
"""Largest difference of the outputs, relative to the largest output."""
HIDDEN = 0.05
"""Share of a step spent waiting below which workers count as fast enough."""
BATCH_ROOM = 0.3
"""Share of the memory that must be free before a larger batch is advised."""


def findings(results: Results) -> list[Finding]:
    """Findings of the experiments of a record; none where there were no steps to judge by.

    The interval of the measured rounds must prove a finding. It becomes a note on a busy machine, unless the gain is
    large, and if long validations leave too little of the gain.
    """
    step = step_of(results)
    if step is None:
        return []
    rules = (workers, items, _autocast, _layout, _batch, _fused, _biases, _subclass)
    others = results.get("others") or 0.0
    return [_tempered(finding, step, others) for rule in rules if (finding := rule(results, step)) is not None]


def _tempered(finding: Finding, step: StepTimes, others: float) -> Finding:
    """The finding with its gain on the whole training time, as a note if a busy machine makes it doubtful."""
    if finding.gain is not None and step.rare_s:
        gain = step.overall(finding.gain)
        finding = replace(finding, gain=gain, level="note" if gain < LEAST else finding.level)
    if others <= BUSY or finding.level == "note" or (finding.gain or 0.0) >= AMID_LOAD:
        return finding
    evidence = f"{finding.evidence}; doubtful, as other programs used {others:.1f} cores meanwhile: run it again alone"
    return replace(finding, level="note", evidence=evidence)


def costs(results: Results) -> dict[str, float]:
    """Measured seconds of a step for faults that are found by watching: "zero-grad-memset", "anomaly-detection",
    "cudnn-benchmark". Only those whose interval proves a cost."""
    names = {"zero_grad": "zero-grad-memset", "anomaly": "anomaly-detection", "cudnn_benchmark": "cudnn-benchmark"}
    return {name: arm["base_s"] - arm["arm_s"] for key, name in names.items() if (arm := _arm(results, key, 1.0))}


def step_of(results: Results) -> StepTimes | None:
    """The model of a step from the times of the loader and the network; None without measured steps."""
    rare_s = results.get("rare_s") or 0.0
    step_s = (results.get("step_s") or 0.0) - rare_s
    if step_s <= 0:
        return None
    loader = results.get("workers") or {}
    count = int(loader.get("now") or 0)
    alone: Any = (loader.get("seconds") or {}).get(str(count))
    wait_s: Any = results.get("wait_s")
    if wait_s is None and alone is None:
        return StepTimes(step_s=step_s, batch_s=None, compute_s=step_s, workers=count, rare_s=rare_s)
    if wait_s is None:
        wait_s = alone if count == 0 else 0.0 if alone < 0.9 * step_s else 0.5 * step_s
    wait_s = min(wait_s, 0.98 * step_s)
    hidden = count > 0 and wait_s < HIDDEN * step_s
    # If the loader is the bottleneck, a batch takes as long as a step, whatever it takes alone.
    batch_s = wait_s if count == 0 else step_s
    if hidden:
        batch_s = None if alone is None else min(alone, step_s)
    compute_s = step_s if hidden else step_s - wait_s
    return StepTimes(step_s=step_s, batch_s=batch_s, compute_s=compute_s, workers=count, rare_s=rare_s)


def _arm(results: Results, name: str, low: float) -> dict[str, Any] | None:
    """An experiment's result if the lower end of its gain is above `low`."""
    arm = results.get(name) or {}
    return dict(arm) if arm.get("low", 0.0) > low else None


def _weighty(results: Results, name: str) -> dict[str, Any] | None:
    """The arm of another precision or layout if it is clearly faster: a larger threshold, and not for toy networks."""
    arm = _arm(results, name, LEAST)
    if arm is None or arm["gain"] < FASTER:
        return None
    return None if arm.get("device", "cpu") == "cpu" and arm["base_s"] < TOY_S else arm


def _timing_text(arm: Results, what: str) -> str:
    return (
        f"{what} {ms(arm['base_s'])} now and {ms(arm['arm_s'])} so: {arm['gain']:.2f} times as fast "
        f"({arm['low']:.2f} to {arm['high']:.2f} over {arm['rounds']} interleaved rounds)"
    )


def _autocast(results: Results, step: StepTimes) -> Finding | None:
    arm = _weighty(results, "autocast")
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
        switch="autocast" if dtype == "bfloat16" else "",
        also=f"; outputs differ by {arm['difference']:.1%} of the largest",
    )


def _layout(results: Results, step: StepTimes) -> Finding | None:
    arm = _weighty(results, "channels_last")
    if arm is None or arm.get("difference", 1.0) > AGREE["exact"]:
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


def _subclass(results: Results, step: StepTimes) -> Finding | None:
    """A note without a measured gain, as the cost depends on the number of small operations."""
    arm = results.get("plain_tensors") or {}
    if not arm.get("subclass"):
        return None
    texts = {
        "name": "metadata-tensor",
        "title": "the network and the loss run on tensors of a subclass, whose Python code sees every operation",
        "cure": "image.as_tensor() before the network (MONAI), or set_track_meta(False)",
    }
    finding = None
    if arm.get("low", 0.0) > 1.0:
        finding = _of_arm(arm, step, also=f"; {arm['subclass']}", **texts)
    return finding or Finding(where=place(arm.get("site", "")), evidence=str(arm["subclass"]), level="note", **texts)  # type: ignore[arg-type]


def _fused(results: Results, step: StepTimes) -> Finding | None:
    arm = _arm(results, "fused", FASTER)
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


def _of_arm(
    arm: dict[str, Any], step: StepTimes, *, also: str, what: str = "forward and backward take", **texts: str
) -> Finding | None:
    """A finding if the arm's gain is worthwhile. what: the timed work, also: more evidence, both in words."""
    saved_s = arm["base_s"] - arm["arm_s"]
    gain = step.gain(saved_s=saved_s)
    if gain < LEAST:
        return None
    evidence = f"{_timing_text(arm, what)}{also}; a step takes {ms(step.step_s)}"
    return Finding(where=place(arm.get("site", "")), evidence=evidence, cost_s=saved_s, gain=gain, **texts)  # type: ignore[arg-type]


def _batch(results: Results, step: StepTimes) -> Finding | None:
    arm = _arm(results, "doubled_batch", 2 / DOUBLED)
    room = None if arm is None else arm.get("free_share")
    if arm is None or (room is not None and room < BATCH_ROOM):
        return None
    more = arm["arm_s"] - arm["base_s"]
    after = step.step_s + max(0.0, more)
    if step.batch_s is not None:
        after = replace(step, batch_s=2 * step.batch_s).after(saved_s=-more)
    gain = min(2.0, 2 * step.step_s / after)
    if gain < 1.15:
        return None
    size = arm["size"]
    return Finding(
        name="small-batch",
        title=f"a batch of {size} leaves the machine idle: fixed costs rule the step",
        where=place((results.get("workers") or {}).get("site") or arm.get("site", "")),
        cure=f"batch_size={2 * size} or more (and the learning rate with it)",
        evidence=f"forward and backward take {ms(arm['base_s'])} on {size} samples and {ms(arm['arm_s'])} on "
        f"{2 * size}: {arm['gain']:.2f} times the samples a second ({arm['low']:.2f} to {arm['high']:.2f}); "
        + (f"{room:.0%} of the memory is free" if room is not None else "free memory unknown"),
        cost_s=step.step_s * (1 - 1 / gain),
        gain=gain,
    )


def _biases(results: Results, step: StepTimes) -> Finding | None:
    """A note without a measured gain: the bias is useless in any case, but may cost nothing on this hardware."""
    arm = results.get("conv_bias") or {}
    names = arm.get("modules") or []
    if not names or arm.get("difference", 1.0) > AGREE["exact"]:
        return None
    sites = [place(site) for site in dict.fromkeys(arm.get("sites") or []) if site]
    saved_s = arm.get("base_s", 0.0) - arm.get("arm_s", 0.0)
    proven = arm.get("low", 0.0) > 1.02 and step.gain(saved_s=saved_s) >= 1.02
    text = _timing_text(arm, "forward and backward take") if "gain" in arm else f"not timed: {arm.get('skipped', '')}"
    listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return Finding(
        name="conv-bias-before-norm",
        title=f"{len(names)} of the convolutions add a bias that the norm right after takes away",
        where=sites[0] if sites else place(arm.get("site", "")),
        cure="bias=False for the convolutions before a norm",
        evidence=f"modules {listed}; {text}" + (f"; also at {', '.join(sites[1:5])}" if len(sites) > 1 else ""),
        cost_s=saved_s if proven else None,
        gain=step.gain(saved_s=saved_s) if proven else None,
        level="finding" if proven else "note",
    )
