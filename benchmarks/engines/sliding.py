"""Sliding windows over a volume of 300x300x200: seconds and peak memory, Hasten's against MONAI's.

The UNet that all benchmarks share, 14 classes, windows of 96^3, 4 at once, Gaussian blending, label maps: in MONAI's
arm by an argmax of the scores. `plain` is the inferer as it is, `surgery` with channels-last windows and a network
freed of what it computes for nothing. Arms take turns in one process; peak memory is that of a child process above what
it held after imports and a warm-up, the network's activations included.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import in_child, interleave

if TYPE_CHECKING:
    import torch

CLASSES = 14
ARMS = ("monai_labels", "plain_labels", "surgery_labels")


def sliding_times(
    rounds: int, quick: bool, precisions: Sequence[str], overlaps: Sequence[float] = (0.25,)
) -> dict[str, list[float]]:
    """Seconds a volume, by "ARM_PRECISION_OVERLAP_s"."""
    results: dict[str, list[float]] = {}
    for precision in precisions:
        for overlap in overlaps:
            setting = Setting(precision, overlap, quick)
            arms: dict[str, Callable[[], float | None]] = {
                f"{name}_{precision}_{overlap}_s": partial(setting.run, name) for name in ARMS
            }
            setting.warm_up()
            results.update(interleave(arms, rounds, warmup=0))
    return results


def sliding_memory(quick: bool, precisions: Sequence[str], overlap: float = 0.25) -> dict[str, list[float]]:
    """Peak MiB above the process's own, by "ARM_PRECISION_OVERLAP_mib". A child process each."""
    results = {}
    for precision in precisions:
        for name in ARMS:
            peak = in_child("benchmarks.engines.sliding", name, precision, overlap, int(quick))
            results[f"{name}_{precision}_{overlap}_mib"] = [float(peak)]
    return results


class Setting:
    """A volume, the network and the inferers of both sides."""

    def __init__(
        self,
        precision: str,
        overlap: float,
        quick: bool,
        *,
        device: torch.device | None = None,
        shape: tuple[int, int, int] | None = None,
    ) -> None:
        import torch
        from monai.inferers import SlidingWindowInferer as Theirs

        from benchmarks.tasks import network
        from hasten.monai.inferer import SlidingWindowInferer as Ours
        from hasten.nets.surgery.operate import operate

        torch.manual_seed(0)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.precision, self.side = precision, 32 if quick else 96
        self.network = network(CLASSES).eval().to(self.device)
        self.image = torch.randn(1, 1, *(shape or ((80, 72, 64) if quick else (300, 300, 200)))).to(self.device)
        given: dict[str, Any] = {"roi_size": (self.side,) * 3, "sw_batch_size": 4, "overlap": overlap}
        given["mode"] = "gaussian"
        self.inferers = {
            "monai": Theirs(**given),
            "plain": Ours(**given),
            "surgery": Ours(**given, channels_last=True),
        }
        self.operated = copy.deepcopy(self.network)
        operate(self.operated, torch.randn(2, 1, 32, 32, 32).to(self.device))
        self.operated.eval()

    def run(self, arm: str) -> None:
        import torch

        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            self._run(arm)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def warm_up(self) -> None:
        """Every arm once on a few windows: kernels are chosen, threads are there, the surgery is done."""
        image = self.image
        self.image = image[..., : self.side, : self.side, : self.side + 8]
        for arm in ARMS:
            self.run(arm)
        self.image = image

    def _run(self, arm: str) -> Any:
        inferer = self.inferers[arm.removesuffix("_labels")]
        if arm == "monai_labels":
            return inferer(self.image, self.network).argmax(1, keepdim=True)
        return inferer.labels(self.image, self.operated if arm == "surgery" else self.network)

    def peak(self, arm: str) -> float:
        """MiB above what the process held before."""
        import torch

        with torch.no_grad():  # a first small pass: threads, kernels
            self.network(self.image[..., :32, :32, :32])
        if self.device.type == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.run(arm)
            return (torch.cuda.max_memory_allocated() - before) / 2**20
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self.run(arm)
        return (status("VmHWM") - before) / 2**10


def status(name: str) -> int:
    """KiB."""
    match = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1])


if __name__ == "__main__":
    _, arm, precision, overlap, quick = sys.argv
    print(json.dumps(Setting(precision, float(overlap), quick == "1").peak(arm)))
