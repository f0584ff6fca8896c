"""The parts of a measurement combined into one split of the wall time."""

from __future__ import annotations

from hasten.study.finding import DOUBLED
from hasten.study.run.assemble import ColdCache
from hasten.study.run.probes import Arms
from hasten.study.run.rare import Rare
from hasten.study.run.timed import TimedSteps
from hasten.study.time_split import PARTS, Split


def split_of(
    ran: TimedSteps,
    *,
    inline: bool,
    rare: Rare | None = None,
    cold: ColdCache | None = None,
    arms: Arms | None = None,
    feed_alone_s: float | None = None,
    copy_s: float = 0.0,
    busy_s: float | None = None,
    captured_s: float | None = None,
    cuda: bool = False,
    shares: tuple[float | None, float | None] = (None, None),
) -> Split:
    """Seconds a step by part, which add up to `step_s`.

    inline: the training device makes its batches itself. copy_s: of a batch to the device. busy_s: of a step in which a
    GPU computes. captured_s: a step as a CUDA graph, whose phases are taken to be those of the uncaptured one. shares:
    of bandwidth and of multiplications.
    """
    arms = arms or Arms()
    parts = _of_step(ran, inline=inline, copy_s=copy_s, cuda=cuda)
    _launches(parts, ran, arms, busy_s=busy_s, cuda=cuda)
    _close(parts, ran.step_s)
    if captured_s is not None:
        parts = {name: value * captured_s / ran.step_s for name, value in parts.items()}
    if rare is not None:
        parts |= {"validation": rare.validation_step_s, "checkpoint": rare.checkpoint_step_s}
        if cold is not None:  # once, spread over the run's steps
            parts |= {"read": cold.read_total_s / rare.steps, "prepare": cold.prepare_total_s / rare.steps}
    parts = {name: parts.get(name, 0.0) for name in PARTS}
    return Split(
        steps=ran.steps,
        step_s=sum(parts.values()),
        parts=parts,
        fixed_batch_s=arms.seconds.get("fixed"),
        feed_alone_s=feed_alone_s,
        doubled=arms.doubled,
        bandwidth_share=shares[0],
        flops_share=shares[1],
    )


def _of_step(ran: TimedSteps, *, inline: bool, copy_s: float, cuda: bool) -> dict[str, float]:
    marks = ran.marks
    around = marks.get("around", 0.0)
    parts = {name: marks.get(name, 0.0) for name in ("forward", "backward", "optimizer")}
    # What a wrapped step does beyond the step: waiting for values that it reads, or else the interpreter.
    parts["device_reads" if ran.reads > 0 else "overhead"] = around
    # On a GPU the batch's mark is on its queue: time that the host waited while the device had work costs nothing.
    batch = marks.get("batch", 0.0) if cuda else ran.asked_s
    outside = min(batch, max(0.0, ran.asked_s - ran.made_s))
    batch_s = batch - outside
    copies = 0.0 if inline else min(batch_s, copy_s)
    parts["sample" if inline else "wait"] = batch_s - copies
    parts["wait"] = parts.get("wait", 0.0) + outside
    parts["host_to_device"] = copies
    return parts


def _launches(parts: dict[str, float], ran: TimedSteps, arms: Arms, *, busy_s: float | None, cuda: bool) -> None:
    """Move what forward and backward spend on launches, and not on voxels, to the overhead, in place."""
    compute = parts["forward"] + parts["backward"]
    if cuda:
        launch_s = max(0.0, compute + parts["optimizer"] - busy_s) if busy_s is not None else 0.0
        launch_s = min(launch_s, compute)
    else:
        launch_s = _fixed_compute(arms, compute, parts["optimizer"])
    if compute <= 0 or launch_s <= 0:
        return
    for name in ("forward", "backward"):
        parts[name] *= 1 - launch_s / compute
    name = "device_reads" if cuda and ran.reads > 0 else "overhead"
    parts[name] = parts.get(name, 0.0) + launch_s


def _fixed_compute(arms: Arms, compute: float, optimizer: float) -> float:
    """Seconds of forward and backward that don't grow with the voxels: the smaller estimate of two experiments.

    A busy machine distorts either alone. If doubling the batch is nearly free, that estimate is used, but limited to
    what one small patch takes, which has the same fixed costs.
    """
    by_size = arms.launches(compute)
    fixed, doubled = arms.seconds.get("fixed"), arms.doubled
    if fixed is None or doubled is None:
        return by_size
    by_doubling = min(compute, max(0.0, (2 - doubled) * fixed - optimizer))
    return min(by_doubling, arms.seconds.get("small", compute) if doubled < DOUBLED else by_size)


def _close(parts: dict[str, float], step_s: float) -> None:
    """Make the parts add up to a step, in place: what is left over is the interpreter's."""
    total = sum(parts.values())
    if total > step_s:
        for name in parts:
            parts[name] *= step_s / total
    else:
        parts["overhead"] = parts.get("overhead", 0.0) + step_s - total
