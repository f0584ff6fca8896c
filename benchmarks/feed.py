"""What data costs: an epoch with full augmentation against the same steps on one fixed batch, and the feeds alone.

The step is the network that all benchmarks share on 8 patches of 40x56x40 voxels: forward, DiceCE, backward, SGD, in
bf16 autocast on a CPU and fp16 on a GPU. `epoch` figures are seconds of that many steps; arms take turns, and what
data costs is an arm's epoch over the fixed batch's epoch of the same round, less 1. An epoch is shorter than the drift
of a shared machine, so that for Hasten, whose batches are made in line, `paired_overhead` takes turns with the fixed
batch step by step. `feed` figures are batches a second with no step, from starting the feed to its last batch. With
`--ct` the data are CT-sized phantoms, each stored as 96x512x512 voxels.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import CT, QUICK_CT, SMALL, phantoms
from benchmarks.harness import Claim, arguments, busy_machine, finish, interleave
from hasten.observe.cores import usable_cores

if TYPE_CHECKING:
    from benchmarks.feeds import Feed
    from benchmarks.ladder.task import TaskCase

ARMS = ("fixed", "monai_cached", "monai_regular", "hasten")
PATCH = (40, 56, 40)
BATCH, SAMPLES = 8, 4
GOAL = 0.05
"""Data may make an epoch this much longer than its steps on a fixed batch."""


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        arms={"nargs": "+", "choices": ARMS, "default": list(ARMS)},
        rounds={"type": int, "help": "epochs per arm; default 5, quick 2"},
        steps={"type": int, "help": "steps of an epoch; default every training case once, quick 4"},
        threads={"type": int, "default": usable_cores(), "help": "torch threads and loader workers"},
        device={"default": "auto"},
        ct={"action": "store_true", "help": "on CT-sized phantoms instead of the hippocampus"},
    )  # fmt: skip
    rounds = given.rounds or (2 if given.quick else 5)
    others = busy_machine()
    with tempfile.TemporaryDirectory() as scratch:
        if given.ct:
            given.data = None
            data = phantoms(Path(scratch), 3 if given.quick else 8, QUICK_CT if given.quick else CT)
        else:
            data = given.data or phantoms(Path(scratch), 8 if given.quick else 40, SMALL)
        figures, steps = measure(given, data, rounds)
    overheads = {
        arm: [mine / floor - 1 for mine, floor in zip(values, figures["fixed/epoch_s"], strict=True)]
        for arm, values in ((name.removesuffix("/epoch_s"), values) for name, values in figures.items())
        if f"{arm}/epoch_s" in figures and arm != "fixed" and "fixed/epoch_s" in figures
    }
    results = figures | {f"{arm}/overhead": values for arm, values in overheads.items()}
    on = "CT-sized phantoms" if given.ct else "hippocampus" if given.data else "small phantoms"
    paired = figures.get("hasten/paired_overhead")
    what = f"{on}: share by which data lengthens Hasten's epoch over its steps on a fixed batch"
    claims = [Claim.at_most(what, statistics.median(paired) if paired else None, GOAL)]
    settings = {"patch": PATCH, "batch": BATCH, "samples": SAMPLES, "steps": steps, "rounds": rounds,
                "threads": given.threads, "data": data if given.data else "phantoms", "about": __doc__}  # fmt: skip
    finish(
        "feed_ct" if given.ct else "feed",
        claims,
        results,
        given.out,
        given.quick,
        settings=settings,
        others_before=others,
    )


def measure(given: Any, data: Path, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Series of every arm, and the steps of an epoch."""
    import torch

    from benchmarks.tasks import bench_task

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    task = bench_task(data, patch=PATCH, crops=SAMPLES)
    num_classes, train = len(task.labels), task.train
    if given.quick:
        train = train[:16]
    steps = given.steps or (4 if given.quick else len(train) * SAMPLES // BATCH)
    feeds = build_feeds(given, data, train)
    step = make_step(given, num_classes)
    epochs = {arm: partial(epoch, feed, step, steps) for arm, feed in feeds.items()}
    alone = {arm: partial(rate, feed, steps) for arm, feed in feeds.items() if arm != "fixed"}
    warmup = 0 if given.quick else 1
    figures = {f"{arm}/epoch_s": values for arm, values in interleave(epochs, rounds, warmup).items()}
    figures |= {f"{arm}/feed_batches_per_s": values for arm, values in interleave(alone, rounds, warmup).items()}
    if "hasten" in feeds and "fixed" in feeds:
        pairs = 2 if given.quick else 10
        figures["hasten/paired_overhead"] = [
            paired_overhead(feeds["hasten"], feeds["fixed"], step, pairs) for _ in range(rounds + warmup)
        ][warmup:]
    return figures, steps


def paired_overhead(feed: Feed, fixed: Feed, step: Callable[[Any], None], pairs: int) -> float:
    """Share by which steps with fresh batches last longer than steps on the fixed batch, taken in turns."""
    seconds = {"fresh": 0.0, "fixed": 0.0}
    batches = {"fresh": iter(feed(pairs)), "fixed": iter(fixed(pairs))}
    for number in range(pairs):
        # Who goes first changes too: the second of two finds the caches as the first left them.
        for name in ("fresh", "fixed") if number % 2 else ("fixed", "fresh"):
            start = time.perf_counter()
            step(next(batches[name]))
            _finish_device()
            seconds[name] += time.perf_counter() - start
    return seconds["fresh"] / seconds["fixed"] - 1


def build_feeds(given: Any, data: Path, train: Sequence[TaskCase]) -> dict[str, Feed]:
    from benchmarks import feeds
    from benchmarks.ladder.chain import rows_of

    rows = rows_of(train)
    made: dict[str, Feed] = {}
    shared = {"patch": PATCH, "batch": BATCH, "samples": SAMPLES, "workers": given.threads}
    for arm in given.arms:
        match arm:
            case "fixed":
                batch = next(feeds.monai_cached(rows[:2], **shared)(1))
                made[arm] = partial(itertools.repeat, batch)
            case "monai_cached":
                made[arm] = feeds.monai_cached(rows, **shared)
            case "monai_regular":
                made[arm] = feeds.monai_regular(rows, **shared)
            case "hasten":
                made[arm] = feeds.hasten_feed(data, [case.id for case in train], PATCH, BATCH, 0, device=given.device)
    return made


def make_step(given: Any, num_classes: int) -> Callable[[Any], None]:
    import torch
    from monai.losses import DiceCELoss

    from benchmarks.ladder.loop import Arm, train_step
    from benchmarks.tasks import bench_task, network
    from hasten.runtime.device import pick_device

    device = pick_device(given.device)
    net = network(num_classes).to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    loss = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, squared_pred=True, batch=True)
    arm = Arm(task=bench_task(None), net=net, loss=loss, optimizer=optimizer, train=(), validation=(), roi=PATCH,
              device=device, amp=True)  # fmt: skip
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")

    def step(batch: Any) -> None:
        train_step(arm, {"image": batch[0], "label": batch[1]}, scaler)

    return step


def epoch(feed: Feed, step: Callable[[Any], None], steps: int) -> float:
    start = time.perf_counter()
    done = 0
    for batch in feed(steps):
        step(batch)
        done += 1
    _finish_device()
    assert done == steps, f"the feed gave {done} batches, not {steps}"
    return time.perf_counter() - start


def rate(feed: Feed, steps: int) -> float:
    """Batches a second, nothing else running."""
    start = time.perf_counter()
    batches: Iterator[Any] = feed(steps)
    deque(batches, maxlen=0)
    _finish_device()
    return steps / (time.perf_counter() - start)


def _finish_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
