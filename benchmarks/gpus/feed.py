"""What augmented batches cost on a GPU: nnU-Net's augmentation as one batch program against MONAI's, sample by sample.

`floor` is the step of the MLPerf-like network (128^3, 2 patches as nnU-Net has them, or the spleen's 96^3, 16 patches)
on one fixed batch; `fed` the same step on fresh batches of a feed that makes them on the card, in turns with it.
`batch` is making a batch and nothing else; MONAI's arm applies its own transforms, one sample after another, to cases
that lie on the card without metadata, as its fast training does. Both cut from the same cases with the same
probabilities. `waits` counts how often the host had to wait for the card within a batch.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.augments import monai_arm
from benchmarks.augments.own_arm import stored
from benchmarks.augments.patches import Case, Nnunet, volumes
from benchmarks.gpus.nets import net_named
from benchmarks.gpus.rungs import RUNGS, make_rung, make_step, ready_run
from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import turns
from benchmarks.harness import Claim, median_ratio
from hasten.augment.crop import SpatialCrop
from hasten.augment.make_program import CaseSource, make_program
from hasten.augment.presets import default_chain, nnunet_chain
from hasten.augment.program import Program
from hasten.config.schema import SampleConfig
from hasten.feed.feed import Feed
from hasten.kernels.use import triton_works
from hasten.training.capture import captured_run

GOAL = 1.03
WORKS = {"mlperf": Nnunet(side=128, batch=2), "spleen": Nnunet(side=96, batch=16)}
QUICK = {"mlperf": Nnunet(side=16, batch=2), "spleen": Nnunet(side=16, batch=2)}
ENDLESS = 10**9
KINDS = ("captured", "captured, unfused", "captured, default chain")
BATCHES_WATCHED = 20
"""For waits: some work is done for several batches at once, and so is not in each."""


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    for name, work in (QUICK if sheet.quick else WORKS).items():
        sheet.attempt(name, 15, lambda name=name, work=work: workload(sheet, name, work))  # type: ignore[misc]


def workload(sheet: Sheet, name: str, work: Nnunet) -> None:
    classes = net_named(name, quick=sheet.quick).num_classes - 1
    cases = volumes(2 if sheet.quick else 6, (work.source + 16,) * 3, classes=classes)
    program = own_program(cases, work, sheet.device)
    sheet.attempt(f"{name}: overhead, eager", 4, lambda: overhead(sheet, name, work, program))
    if sheet.cuda:
        for kind in KINDS:
            sheet.attempt(f"{name}: overhead, {kind}", 6, partial(captured_overhead, sheet, name, work, cases, kind))
    sheet.attempt(f"{name}: batches, eager", 4, lambda: batches(sheet, name, work, cases, program))
    sheet.attempt(f"{name}: waits, eager", 2, lambda: count_waits(sheet, name, work, cases, program))
    claims(sheet, name)


def own_program(cases: list[Case], work: Nnunet, device: torch.device, kind: str = "") -> Program:
    """Over the cases in memory of the device. kind: one of `KINDS`; the first one is fused."""
    chain = nnunet_chain(work.patch, crop=SpatialCrop(size=work.patch), rotate_deg=work.rotate_deg)
    if kind == KINDS[2]:
        chain = default_chain(SampleConfig(patch=work.patch), patch=work.patch, spatial_dims=3)
    store, fuse = stored(cases).to(device), kind == KINDS[0] and triton_works(device)
    return make_program(chain, CaseSource(store=store), batch_size=work.batch, device=device, fuse=fuse)


def their_batches(cases: list[Case], work: Nnunet, device: torch.device) -> Iterator[Any]:
    there = [Case(case.image.to(device), case.label.to(device)) for case in cases]
    return monai_arm.nnunet(there, work, loader="inline")


def batches(sheet: Sheet, name: str, work: Nnunet, cases: list[Case], program: Program) -> None:
    """Milliseconds a batch, the arms in turns."""
    theirs, made = their_batches(cases, work, sheet.device), program.batches(0, ENDLESS)
    ours = "hasten eager"
    # Batches differ in what is drawn for them, so that each figure is the mean of some.
    times = turns(
        {"monai": lambda: next(theirs), ours: lambda: next(made)}, sheet.device,
        rounds=2 if sheet.quick else 5, repeats=1 if sheet.quick else 8,
    )  # fmt: skip
    sheet.keep({f"{name}/batch, monai beside {ours}_ms": times["monai"], f"{name}/batch, {ours}_ms": times[ours]})


def count_waits(sheet: Sheet, name: str, work: Nnunet, cases: list[Case], program: Program) -> None:
    """How often the host waits for the card within a batch."""
    if not sheet.cuda:
        sheet.skip(f"{name}: waits", "only a CUDA device says when it is waited for")
        return
    made, theirs = program.batches(0, ENDLESS), their_batches(cases, work, sheet.device)
    waits = [waits_of(lambda: next(made)) for _ in range(BATCHES_WATCHED)]
    sheet.keep({f"{name}/waits a batch, hasten eager": waits[1:]})
    sheet.keep({f"{name}/waits a batch, monai": [waits_of(lambda: next(theirs)) for _ in range(4)][1:]})


def waits_of(call: Callable[[], object]) -> int:
    """Synchronizing calls of torch within `call`."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def overhead(sheet: Sheet, name: str, work: Nnunet, program: Program) -> None:
    """Steps on fresh batches over steps on a fixed one."""
    net = net_named(name, quick=sheet.quick)
    rung = next(rung for rung in RUNGS if rung.name == "hasten")
    step, (image, label) = make_step(rung, net, work.batch, sheet.device)
    number = itertools.count()
    feed = iter(Feed(program, last=ENDLESS))
    times = turns(
        {"floor": lambda: step(image, label, next(number)), "fed": lambda: step(*pair(next(feed)), next(number))},
        sheet.device, rounds=2 if sheet.quick else 7, repeats=1 if sheet.quick else 8, warmup=2,
    )  # fmt: skip
    keep_overhead(sheet, name, "eager", times)


def captured_overhead(sheet: Sheet, name: str, work: Nnunet, cases: list[Case], kind: str) -> None:
    """The same with the batch made beside the step in one CUDA graph."""
    program = own_program(cases, work, sheet.device, kind)
    net = net_named(name, quick=sheet.quick)
    rung = next(rung for rung in RUNGS if rung.name == "hasten captured")
    assert program.segment is not None
    fixed = make_rung(rung, net, work.batch, sheet.device)
    fed = ready_run(captured_run(make_step(rung, net, work.batch, sheet.device)[0], program.segment))
    times = turns({"floor": fixed.step, "fed": fed.step}, sheet.device, rounds=7, repeats=8, warmup=2)
    fixed.close()
    fed.close()
    keep_overhead(sheet, name, kind, times)


def keep_overhead(sheet: Sheet, name: str, kind: str, times: dict[str, list[float]]) -> None:
    over = [fed / floor for fed, floor in zip(times["fed"], times["floor"], strict=True)]
    sheet.keep({f"{name}/step, floor beside {kind}_ms": times["floor"], f"{name}/step, fed {kind}_ms": times["fed"],
                f"{name}/overhead, {kind}": over})  # fmt: skip


def claims(sheet: Sheet, name: str) -> None:
    """Of the step as a run has it: captured, where that was measured."""
    result = sheet.results
    whole = "captured" if f"{name}/overhead, captured" in result else "eager"
    over, waits = result.get(f"{name}/overhead, {whole}"), result.get(f"{name}/waits a batch, hasten eager")
    ratio = median_ratio(result.get(f"{name}/batch, monai beside hasten eager_ms"),
                         result.get(f"{name}/batch, hasten eager_ms"))  # fmt: skip
    text = f"{name}: step with nnU-Net's augmentation ({whole}) over the step on a fixed batch"
    sheet.claim(
        Claim.at_most(text, median(over) if over else None, GOAL),
        Claim.at_least(f"{name}: MONAI on the GPU takes this many times the milliseconds a batch, eager", ratio, 5),
        Claim.at_most(f"{name}: waits for the card within a batch, eager", max(waits) if waits else None, 0),
    )


def pair(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """As a step takes it."""
    return batch["image"].float(), batch["label"].to(torch.uint8)
