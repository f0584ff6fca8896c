"""One optimizer step on a fixed batch, rung by rung, for an MLPerf-like network at 128^3 and the spleen's at 96^3.

Every rung of a network has the same batch, what MLPerf and the tutorial give to a card. Figures are
milliseconds, patches and Mvoxels a second, and the share of what this card's matrix products reach in the rung's own
precision (the operations of convolutions and products alone are counted). Hasten's rungs take turns with eager bf16,
which so shows whether the card has changed its pace; `best, larger batch` is the fastest rung once more with twice the
patches. Nothing here feeds the step: what data cost is another part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from benchmarks.gpus.card import products
from benchmarks.gpus.nets import Net, net_named, operations
from benchmarks.gpus.rungs import RUNGS, Rung, make_rung
from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.timing import milliseconds, peak_mib, seconds_of, turns
from benchmarks.harness import Claim

ANCHORS = {"H200": 76.3, "H100": 72.5, "A100": 33.7}
"""Patches of 128^3 a second and card: MLPerf Training, unet3d, the best of 8 such cards, the whole training (v4.0; A100
v3.1)."""
REFERENCE = "eager bf16"
ROUND_MS = 300.0
"""A round of a rung takes about this long, or one step."""
LARGE_GIB = 60.0
"""Of a card that is given the larger batch."""


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    ceilings = products(sheet)
    sheet.keep(ceilings)
    peaks = {name.split("/")[1].split("_")[0]: median(values) for name, values in ceilings.items()}
    nets = {name: net_named(name, quick=sheet.quick) for name in ("mlperf", "spleen")}
    ladders = {name: Ladder(name, net, sheet, peaks) for name, net in nets.items()}
    # A rung of all networks before the next one: whatever time is left, both have the rungs that matter most.
    for rung in RUNGS:
        for ladder in ladders.values():
            ladder.climb(rung)
    for ladder in ladders.values():
        ladder.finish()


class Ladder:
    """The rungs of one network."""

    def __init__(self, name: str, net: Net, sheet: Sheet, peaks: dict[str, float]) -> None:
        self.name, self.net, self.sheet, self.peaks = name, net, sheet, peaks
        self.size = batch_size_for(net, sheet.device)
        self.work = operations(net)
        self.pace: dict[str, float] = {}
        """Patches a second by rung."""
        sheet.tell(name, {"network": net.about, "parameters": net.network, "side": net.side,
                          "batch": self.size, "teraflop a patch": self.work / 1e12})  # fmt: skip

    def climb(self, rung: Rung, size: int | None = None) -> None:
        self.sheet.attempt(f"{self.name}: {rung.name}", 4.0, lambda: self._climb(rung, size or self.size))

    def _climb(self, rung: Rung, size: int) -> None:
        sheet = self.sheet
        ready = make_rung(rung, self.net, size, sheet.device)
        try:
            first = seconds_of(ready.step, sheet.device)
            memory = peak_mib(ready.step, sheet.device)
            once = milliseconds(ready.step, sheet.device)()
            arms = {rung.name: ready.step} | self._reference(rung, size, memory)
            repeats = 1 if sheet.quick else max(1, min(8, int(ROUND_MS / once)))
            times = turns(arms, sheet.device, rounds=2 if sheet.quick else 5, repeats=repeats, warmup=1)
        finally:
            ready.close()
        sheet.keep({f"{self.name}/{rung.name}, first step_s": [first]})
        self._keep(rung, size, times[rung.name], memory, ready.note)
        if len(arms) > 1:
            sheet.keep({f"{self.name}/{REFERENCE}, beside {rung.name}_ms": times[REFERENCE]})

    def _reference(self, rung: Rung, size: int, memory: float | None) -> dict[str, Callable[[], object]]:
        """The reference's step, for a rung of Hasten's and where both have room."""
        if not rung.own or size != self.size or memory is None:
            return {}
        if 2.5 * memory * 2**20 > torch.cuda.mem_get_info(self.sheet.device)[1]:
            return {}
        reference = next(other for other in RUNGS if other.name == REFERENCE)
        return {REFERENCE: make_rung(reference, self.net, size, self.sheet.device).step}

    def _keep(self, rung: Rung, size: int, times: list[float], memory: float | None, message: str) -> None:
        name = f"{self.name}/{rung.name}"
        pace = [1e3 * size / value for value in times]
        peak = self.peaks.get(rung.precision)
        series = {
            f"{name}_ms": times,
            f"{name}_patches/s": pace,
            f"{name}_Mvoxel/s": [value * self.net.voxels / 1e6 for value in pace],
        }
        if peak is not None:
            series[f"{name}_share_of_product"] = [value * self.work / 1e12 / peak for value in pace]
        if memory is not None:
            series[f"{name}_peak_mib"] = [memory]
        self.pace[rung.name] = median(pace)
        self.sheet.keep(series)
        self.sheet.tell(name, {"batch": size, "note": message})

    def finish(self) -> None:
        """The best rung with a larger batch, and the claims."""
        best = max(self.pace, key=self.pace.__getitem__, default=None)
        if best is None:
            return
        rung = next(rung for rung in RUNGS if rung.name == best)
        self.climb(replace(rung, name="best, larger batch"), 2 * self.size)
        plain = self.pace.get("eager fp32")
        fastest = max(self.pace.values())
        if plain is not None:
            text = f"{self.name}: the fastest step ({best}) takes this many times fewer seconds than eager fp32"
            self.sheet.claim(Claim.at_least(text, fastest / plain, 2.0))
        if self.name == "mlperf":
            card, anchor = anchor_of(torch.cuda.get_device_name() if self.sheet.cuda else "")
            text = f"mlperf: patches of 128^3 a second, the step alone, against a whole training in MLPerf ({card})"
            self.sheet.claim(Claim.at_least(text, fastest, anchor))


def batch_size_for(net: Net, device: torch.device) -> int:
    """Patches of a step, by the card's memory."""
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30 if device.type == "cuda" else 0.0
    return net.batch if memory >= LARGE_GIB else net.small_batch


def anchor_of(card: str) -> tuple[str, float]:
    """What MLPerf has of a card; the fastest where it has none."""
    known = next((name for name in ANCHORS if name in card), "H200")
    return known, ANCHORS[known]
