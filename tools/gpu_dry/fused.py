"""What the fused kernels of nnU-Net's chain move: `python -m tools.gpu_dry.fused [--write]`, in a minute.

The kernels run in Triton's interpreter, on small patches, and every address that one of them reads or writes counts
once for each launch, as on a card whose cache holds a volume. Cases and drawn numbers do not count, as in `inductor`.
Twice: with the chain's own probabilities, and with every operation drawn for every sample. Fails where that is above
`budget.json`; `--write` takes today's numbers for the budget.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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

from hasten.augment.chain import Chain
from hasten.augment.fused import KINDS, render_fused
from hasten.augment.presets import nnunet_chain
from tests.augment.stores import bind_store, random_store
from tools.gpu_dry.traffic import Traffic, over_budget, read_budget, write_budget

SIDE, BATCH = 16, 256
"""Enough samples for the shares of those that draw an operation to be near the probabilities."""
VIEWS = {"alias", "as_strided", "detach", "empty", "new_empty", "select", "slice", "unbind", "view", "_unsafe_view"}
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


def traffic_of(chain: Chain, batch_size: int) -> Traffic:
    """Of a rendered batch of 16^3."""
    store = random_store([(SIDE + 4,) * 3, (SIDE + 9,) * 3], dtype="float16")
    segment = bind_store(chain, store, batch_size=batch_size)
    with torch.no_grad():
        draws = segment.drawn(torch.arange(batch_size))
        before = [each for each in tree_leaves((draws, segment.stored())) if isinstance(each, Tensor)]
        with np.errstate(divide="ignore"), counted(before) as counter:
            batch = render_fused(segment.stages, segment.stored(), draws, 3, {})
    volume = batch["label"].nbytes // batch_size
    whole = sum(each.nbytes for each in batch.values())
    volumes = sum(size >= volume for size in counter.sizes)
    return Traffic(len(counter.sizes), volumes, round(sum(counter.sizes) / whole, 1))


def main() -> int:
    chain = nnunet_chain((SIDE, SIDE, SIDE))
    always = tuple(replace(op, prob=1.0) if type(op) in KINDS else op for op in chain.ops)
    chains = {"nnunet": (chain, BATCH), "nnunet, all drawn": (replace(chain, ops=always), 8)}
    found = {name: traffic_of(*each) for name, each in chains.items()}
    if "--write" in sys.argv:
        write_budget("fused", found)
    allowed = read_budget("fused")
    table = Table("chain", "launches", "of volumes", "batches moved", "budget", title_justify="left")
    table.title = f"fused rendering in Triton's interpreter, {BATCH} x {SIDE}^3, float16 cases"
    for name, each in found.items():
        table.add_row(
            name, str(each.launches), str(each.volumes), str(each.batches), " / ".join(map(str, allowed[name].values()))
        )
    Console().print(table)
    faults = [f"{name}: {fault}" for name, each in found.items() for fault in over_budget(each, allowed[name])]
    print("".join(f"FAILED {each}\n" for each in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
