"""What nnU-Net's augmentation costs a training: steps on fresh batches against steps on one fixed batch.

The chain is that of nnU-Net 2.8's trainer: Hasten's as `hasten train augment.preset=nnunet` runs it (`hasten`; with its
kernels compiled ahead of time, `sample.compile=true`: `hasten_compiled`), MONAI's transforms and batchgeneratorsv2 with
as many worker processes as there are cores. All read the same cases in memory, scaled and padded beforehand. The step
is the network that all benchmarks share: forward, DiceCE, backward, SGD, in bf16 autocast on a CPU. Arms take turns;
in each turn workers are started, two steps are not counted, and the rest are timed in their steady state. What data
cost is an arm's seconds over the fixed batch's of the same turn, less 1. With `--ct` patches of 64 voxels a side are
cut from CT-sized phantoms (96x512x512), else patches of 32 from the hippocampus.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data import CT, QUICK_CT, SMALL, phantoms
from benchmarks.feed import make_step
from benchmarks.harness import Claim, arguments, busy_machine, finish, interleave
from hasten.observe.cores import usable_cores

if TYPE_CHECKING:
    from benchmarks.augments.patches import Case, Nnunet

ARMS = ("fixed", "hasten", "hasten_compiled", "batchgeneratorsv2", "monai")
GOAL = 0.10
WARM_UP = 2
Arm = Callable[[], Iterator[Any]]


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        arms={"nargs": "+", "choices": ARMS, "default": list(ARMS)},
        rounds={"type": int, "help": "turns of each arm; default 5, quick 1"},
        steps={"type": int, "help": "steps of a turn; default 12, quick 2"},
        threads={"type": int, "default": usable_cores(), "help": "torch threads and loader workers"},
        device={"default": "auto"},
        ct={"action": "store_true", "help": "on CT-sized phantoms instead of the hippocampus"},
    )  # fmt: skip
    rounds, steps = given.rounds or (1 if given.quick else 5), given.steps or (2 if given.quick else 12)
    others = busy_machine()
    with tempfile.TemporaryDirectory() as scratch:
        if given.ct:
            given.data = None
            data = phantoms(Path(scratch), 3 if given.quick else 6, QUICK_CT if given.quick else CT)
        else:
            data = given.data or phantoms(Path(scratch), 6, SMALL)
        figures, side = measure(given, data, rounds, steps)
    floor = figures["fixed/steps_s"]
    for name in [name.removesuffix("/steps_s") for name in figures]:
        if name != "fixed":
            spent = figures[f"{name}/steps_s"]
            figures[f"{name}/overhead"] = [mine / least - 1 for mine, least in zip(spent, floor, strict=True)]
    on = "CT-sized phantoms" if given.ct else "hippocampus" if given.data else "small phantoms"
    paired = figures.get("hasten/overhead")
    what = f"{on}, nnU-Net's chain: share by which data lengthens Hasten's steps over those on a fixed batch"
    settings = {"side": side, "steps": steps, "rounds": rounds, "threads": given.threads,
                "data": data if given.data else "phantoms", "about": __doc__}  # fmt: skip
    finish(
        "feed_nnunet_ct" if given.ct else "feed_nnunet",
        [Claim.at_most(what, statistics.median(paired) if paired else None, GOAL)],
        figures, given.out, given.quick, settings=settings, others_before=others,
    )  # fmt: skip


def measure(given: argparse.Namespace, data: Path, rounds: int, steps: int) -> tuple[dict[str, list[float]], int]:
    """Seconds of the steps of each turn by arm, and the patch's side."""
    import torch

    from benchmarks.augments.patches import Nnunet

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    work = Nnunet(side=64, batch=2) if given.ct and not given.quick else Nnunet(side=32, batch=8)
    cases = loaded(data, work, count=4 if given.quick else 6 if given.ct else 40)
    step = make_step(given, 2 if given.ct or not given.data else 3)
    arms = {name: partial(turn, arm, step, steps) for name, arm in arms_of(given, cases, work).items()}
    result = interleave(arms, rounds, 0 if given.quick else 1)
    return {f"{name}/steps_s": values for name, values in result.items()}, work.side


def loaded(data: Path, work: Nnunet, count: int) -> list[Case]:
    """Cases in memory, 0..1, padded to what peers cut before they turn a patch."""
    import torch
    from torch.nn import functional

    from benchmarks.augments.patches import Case
    from benchmarks.tasks import prepare_config
    from hasten.cases.sources import load_case_set
    from hasten.prepare.case import load_prepared

    cases = []
    result = load_case_set(data)
    for case in result.cases[:count]:
        prepared = load_prepared(case, result.labels, prepare_config("mr", None))
        assert prepared.label is not None
        image = torch.from_numpy(prepared.image.astype("float32"))
        image = (image - image.min()) / (image.max() - image.min())
        label = torch.from_numpy(prepared.label)[None]
        pad = [side for size in reversed(label.shape[1:]) for side in (0, max(0, work.source - size))]
        cases.append(Case(functional.pad(image, pad), functional.pad(label, pad)))
    return cases


def arms_of(given: argparse.Namespace, cases: list[Case], work: Nnunet) -> dict[str, Arm]:
    from benchmarks.augments import batchgenerators_arm, monai_arm, own_arm

    batch = next(own_arm.stream(own_arm.nnunet(cases, work, compile=False)))
    made: dict[str, Arm] = {}
    for name in given.arms:
        match name:
            case "fixed":
                made[name] = partial(itertools.repeat, (batch["image"], batch["label"]))
            case "hasten" | "hasten_compiled":
                made[name] = own_arm_of(cases, work, compile=name == "hasten_compiled")
            case "monai":
                made[name] = partial(monai_arm.nnunet, cases, work, workers=given.threads)
            case "batchgeneratorsv2":
                made[name] = partial(batchgenerators_arm.nnunet, cases, work, workers=given.threads)
    return made


def own_arm_of(cases: list[Case], work: Nnunet, *, compile: bool) -> Arm:
    from benchmarks.augments import own_arm
    from hasten.feed.feed import Feed

    program = own_arm.nnunet(cases, work, compile=compile)
    if compile and not program.compiled:
        raise RuntimeError(f"nothing is compiled: {program.why}")
    firsts = itertools.count(step=1000)

    def batches() -> Iterator[Any]:
        first = next(firsts)
        return ((batch["image"], batch["label"]) for batch in Feed(program, first=first, last=first + 1000))

    return batches


def turn(arm: Arm, step: Callable[[Any], None], steps: int) -> float:
    """Seconds of so many steps, in the steady state of the arm's workers."""
    batches = arm()
    try:
        for _ in range(WARM_UP):
            step(next(batches))
        start = time.perf_counter()
        for _ in range(steps):
            step(next(batches))
        return time.perf_counter() - start
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


if __name__ == "__main__":
    main()
