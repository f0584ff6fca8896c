"""The rungs of the ladder: what each adds to the one below it, and the process that trains it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

_MONAI, _PROGRAM, _HASTEN = "monai", "program", "hasten"


@dataclass(frozen=True, slots=True)
class Rung:
    name: str
    label: str
    """A few words for charts."""
    adds: str
    """What it does that the rung below does not; all else is the same."""
    module: str
    """The arm that trains it, of `benchmarks.ladder.arms`."""
    needs: str = ""
    """Package of `hasten[peers]` that it trains with."""
    trains_as: str = ""
    """The rung of the ladder that it trains as, where it only has another time limit."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What tells the arm which rung it is, where it has several."""
        return ("--rung", self.trains_as or self.name) if self.module in (_MONAI, _HASTEN) else ()


RUNGS = (
    Rung("regular", "regular", "Dataset and DataLoader with worker processes, started anew each epoch; every file is "
         "read and prepared each time. Adam, Dice loss, fp32.", _MONAI),
    Rung("cache", "+ cache", "CacheDataset: each case is read and prepared once, by threads, validation cases too.",
         _MONAI),
    Rung("threads", "+ thread loader", "ThreadDataLoader without workers in the place of DataLoader's processes, and "
         "copy_cache=False.", _MONAI),
    Rung("amp", "+ AMP", "Autocast: fp16 with loss scaling on a GPU, bf16 on a CPU.", _MONAI),
    Rung("device", "+ device cache", "EnsureTyped(device, track_meta=False) before the crop: cached cases lie on the "
         "training device, crops are cut there, and no metadata is tracked.", _MONAI),
    Rung("algorithms", "+ algorithms = MONAI fast", "DiceCE in the place of Dice, SGD with a large rate in the place "
         "of Adam (or what the recipe names). This is MONAI's fast training, complete.", _MONAI),
    Rung("program", "+ batch program", "Hasten's prepared arena and batch program in the place of CacheDataset, crop "
         "and loader. Loss, optimizer, loop and validation stay MONAI's.", _PROGRAM),
    Rung("engine", "+ fused, compiled, captured", "Hasten's loop, with what it measures to be faster here: fused "
         "norms, losses and optimizer, channels-last, compiling, CUDA graphs, overlapped feed, its own sliding "
         "window. Loss, optimizer, crop and batch are still those of the rung below.", _HASTEN),
    Rung("hasten", "Hasten as it comes", "Hasten's own optimizer, schedule, averaged weights, patch, batch and "
         "augmentation: what `hasten train` does with the recipe's settings.", _HASTEN),
)  # fmt: skip
"""From the bottom to the top."""
PEERS = (
    Rung("nnunet", "nnU-Net", "nnU-Net v2 with its own plan and trainer, on the same cases.", "nnunet", "nnunetv2"),
)
"""Other ways to train, which stand beside the ladder."""

THIRD = Rung("third", "Hasten, given a third of the time", "Nothing: the same, with its schedule in a third of the "
             "time.", _HASTEN, trains_as="hasten")  # fmt: skip
"""Where all rungs have the same time."""


def rungs_named(names: Sequence[str] = (), peers: Sequence[str] = ()) -> list[Rung]:
    """Those rungs, in the ladder's order, all where none is named; then the peers. ValueError for an unknown name."""
    for given, known, option in ((names, RUNGS, "--rungs"), (peers, PEERS, "--peer")):
        valid = [rung.name for rung in known]
        for name in given:
            if name not in valid:
                near = difflib.get_close_matches(name, valid, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{option} {name}: no such name; there are {', '.join(valid)}{hint}")
    chosen = [rung for rung in RUNGS if not names or rung.name in names]
    return chosen + [rung for rung in PEERS if rung.name in peers]
