"""A volume of 512x512x200 with 14 classes in sliding windows of 96^3: seconds and peak memory, against MONAI's.

The network and the inferers are those of `benchmarks.engines.sliding`: Gaussian blending, 4 windows at once, a quarter
overlap, label maps. Memory is the most that torch held above what lay there before, the volume and the weights.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.engines.sliding import ARMS, Setting
from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import seconds_of
from benchmarks.harness import Claim, interleave, median_ratio

SHAPE, QUICK_SHAPE = (512, 512, 200), (48, 40, 36)
OVERLAP = 0.25


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    for precision in ("bf16", "fp32"):
        sheet.attempt(precision, 10, lambda precision=precision: volume(sheet, precision))  # type: ignore[misc]


def volume(sheet: Sheet, precision: str) -> None:
    shape = QUICK_SHAPE if sheet.quick else SHAPE
    setting = Setting(precision, OVERLAP, sheet.quick, device=sheet.device, shape=shape)
    sheet.tell(precision, {"shape": shape})
    setting.warm_up()
    arms = {f"{name}, {precision}_s": partial(seconds_of, partial(setting.run, name), sheet.device)
            for name in ARMS}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in arms}
    for each in range(1 if sheet.quick else 5):
        for name, values in interleave(arms, rounds=1, warmup=0 if sheet.quick or each else 1).items():
            times[name] += values
        sheet.keep(times)  # after each round, as the time may run out in the next one
    ratio = median_ratio(times[f"monai_labels, {precision}_s"], times[f"surgery_labels, {precision}_s"])
    sheet.claim(Claim.at_least(f"512x512x200, 14 classes, {precision}: MONAI takes this many times as long", ratio, 2))
    if not sheet.cuda:
        sheet.skip(f"{precision}: memory", "torch counts it on a CUDA device only")
        return
    peaks = {}
    for name in ARMS:
        torch.cuda.empty_cache()
        peaks[name] = setting.peak(name)
    sheet.keep({f"{name}, {precision}_peak_mib": [value] for name, value in peaks.items()})
    share = peaks["surgery_labels"] / peaks["monai_labels"]
    sheet.claim(Claim.at_most(f"512x512x200, 14 classes, {precision}: share of MONAI's peak memory", share, 1 / 3))
