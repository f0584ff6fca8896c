"""What the fused kernels of nnU-Net's chain move: `python -m tools.gpu_dry.fused [--write]`, in a minute or two.

The kernels run in Triton's interpreter, on small patches, and every address that one of them reads or writes counts
once for each launch, as on a card whose cache holds a volume. Cases and drawn numbers do not count.
Every combination of drawn operations runs. What is expected of a sample follows by their probabilities; the other row
is a sample that draws all of them. Fails where that is above `budget.json`; `--write` takes today's numbers.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter

from hasten.augment.chain import Chain, stages_of
from hasten.augment.fused import render_fused
from hasten.augment.presets import nnunet_chain
from tests.augment.stores import bind_store, random_store
from tools.gpu_dry.traffic import Traffic, over_budget, read_budget, write_budget

SIDE = 16
MOVING = (2, 4, 5, 6, 7)
"""The stages of nnU-Net's chain that move bytes where they are drawn: all but the map, noise and brightness."""
VIEWS = {"alias", "as_strided", "detach", "empty", "empty_like", "new_empty", "select", "unbind", "view"}
"""Operations of torch that launch nothing."""


@dataclass
class Counter(TorchDispatchMode):
    """Launches, and the bytes of each beside those of the tensors that were there before."""

    before: list[tuple[int, int]]
    """First address and the one after the last."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each launch."""
    touched: dict[int, list[np.ndarray]] = field(default_factory=dict)
    """Of the kernel that runs: addresses of elements of so many bytes."""

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in VIEWS:
            tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
            self.sizes.append(sum(each.nbytes for each in tensors))
        return result

    def touch(self, pointers: Any, mask: Any) -> None:
        address = np.unique(np.broadcast_to(pointers.data, mask.data.shape)[mask.data.astype(bool)])
        size = pointers.get_element_ty().primitive_bitwidth // 8
        for first, last in self.before:
            address = address[(address < first) | (address >= last)]
        self.touched.setdefault(size, []).append(address)

    def launched(self) -> None:
        touched, self.touched = self.touched, {}
        self.sizes.append(sum(size * len(np.unique(np.concatenate(each))) for size, each in touched.items()))


@contextmanager
def counted(before: list[Tensor]) -> Iterator[Counter]:
    """Counts what runs inside. before: tensors whose bytes don't count."""
    spans = [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in before]
    reads, writes = Counter(spans), Counter(spans)
    builder = interpreter.InterpreterBuilder
    load, store, run = builder.create_masked_load, builder.create_masked_store, interpreter.GridExecutor.__call__

    def loading(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        reads.touch(pointers, mask)
        return load(self, pointers, mask, *rest)

    def storing(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        writes.touch(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def launching(self: Any, *args: Any, **kwargs: Any) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            run(self, *args, **kwargs)
        reads.launched()
        writes.launched()
        reads.sizes[-1] += writes.sizes[-1]

    with (
        mock.patch.object(builder, "create_masked_load", loading),
        mock.patch.object(builder, "create_masked_store", storing),
        mock.patch.object(interpreter.GridExecutor, "__call__", launching),
        mock.patch("hasten.augment.fused.triton_runs", return_value=True),
        mock.patch("hasten.augment.read.triton_runs", return_value=True),
        mock.patch("hasten.augment.smooth.triton_runs", return_value=True),
        reads,
    ):
        yield reads


def traffic_of(chain: Chain, drawn: Sequence[bool]) -> Traffic:
    """Of one sample of 16^3 that draws these of `MOVING`."""
    store = random_store([(SIDE + 4,) * 3, (SIDE + 9,) * 3], dtype="float16")
    segment = bind_store(chain, store, batch_size=1)
    with torch.no_grad():
        draws = next(segment.draws(0, 1))
        for place, used in zip(MOVING, drawn, strict=True):
            draws.stages[place]["use"].fill_(used)  # type: ignore[call-overload]
        before = [each for each in tree_leaves((draws, segment.stored())) if isinstance(each, Tensor)]
        with np.errstate(divide="ignore"), counted(before) as counter:
            batch = render_fused(segment.stages, segment.stored(), draws, 3)
    volumes = sum(size >= batch["label"].nbytes for size in counter.sizes)
    whole = sum(each.nbytes for each in batch.values())
    return Traffic(len(counter.sizes), volumes, sum(counter.sizes) / whole)


def main() -> int:
    chain = nnunet_chain((SIDE, SIDE, SIDE))
    stages = stages_of(chain, (SIDE, SIDE, SIDE))
    expected = 0.0
    for drawn in product((False, True), repeat=len(MOVING)):
        one = traffic_of(chain, drawn)
        chances = [stages[place].op.prob for place in MOVING]  # type: ignore[union-attr]
        weight = math.prod(prob if used else 1 - prob for prob, used in zip(chances, drawn, strict=True))
        expected += weight * one.batches
    counts = {
        "nnunet": replace(one, batches=round(expected, 1)),
        "all drawn": replace(one, batches=round(one.batches, 1)),
    }
    if "--write" in sys.argv:
        write_budget("fused", counts)
    allowed = read_budget("fused")
    table = Table("chain", "launches", "of volumes", "batches moved", "budget", title_justify="left")
    table.title = f"fused rendering in Triton's interpreter, {SIDE}^3, float16 cases"
    faults: list[str] = []
    for name, each in counts.items():
        faults += [f"{name}: {fault}" for fault in over_budget(each, allowed[name])]
        numbers = map(str, (each.launches, each.volumes, each.batches))
        table.add_row(name, *numbers, " / ".join(map(str, allowed[name].values())))
    Console().print(table)
    print("".join(f"FAILED {each}\n" for each in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
