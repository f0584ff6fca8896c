"""What torch.compile makes of a batch's rendering for an H100: `python -m tools.gpu_dry.inductor [--write]`.

The Triton source is written but not compiled. Of each chain: how many kernels are launched, and how many bytes they
read and write, in batches. Fails where that is above `budget.json`; `--write` takes today's numbers for the budget.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch._inductor.graph import GraphLowering

from hasten.augment.make_program import GPU_OPTIONS
from hasten.augment.program import Segment
from hasten.augment.render import render
from tools.gpu_dry.augmentation import preset_segment
from tools.gpu_dry.fake_device import fake_cuda, on_cuda
from tools.gpu_dry.h100 import h100
from tools.gpu_dry.traffic import over_budget, read_budget, traffic_of, write_budget

SIDE, BATCH = 128, 2
CHAINS = ("nnunet", "default", "brats", "spleen")
_OPTIONS: dict[str, Any] = {
    **GPU_OPTIONS,
    "joint_graph_constant_folding": False,  # computes on the device
}


class _Written(Exception):
    """The source is there; nothing more is needed."""


def source_of(function: Callable[..., Any], *arguments: Any) -> str:
    """The module that inductor writes for a call of `function` on fake tensors. Inside `h100` and `fake_cuda`."""
    results: list[str] = []

    def keep(graph: GraphLowering) -> None:
        results.append(graph.codegen()[0].value)
        raise _Written

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=False, options=_OPTIONS)
    # Without caches: a graph of this machine must not be taken for one of a card.
    uncached = torch.compiler.config.patch(force_disable_caches=True)
    with uncached, mock.patch.object(GraphLowering, "compile_to_module", keep):
        try:
            compiled(*arguments)
        except Exception:
            if not results:
                raise
    return results[0]


def rendering_source(segment: Segment) -> str:
    """The source for the rendering of a batch, traced as `hasten.augment.make_program` has it traced."""
    with h100(), fake_cuda():
        own = on_cuda(segment)
        draws = next(own.draws(0, 1))
        store = own.store
        for tensor in (*store.values.values(), store.shape, store.offset):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return source_of(render, own.stages, own.stored(), draws, store.spatial_dims, {})


def main() -> int:
    logging.disable(logging.WARNING)
    table = Table("chain", "launches", "of volumes", "batches moved", "budget", title_justify="left")
    table.title = f"rendering for sm_90, {BATCH} x {SIDE}^3, float16 cases"
    counts = {}
    for name in CHAINS:
        source = rendering_source(preset_segment(name, 3, SIDE, "float16", batch_size=BATCH))
        counts[name] = traffic_of(source)
    if "--write" in sys.argv:
        write_budget("compiled", counts)
    allowed, faults = read_budget("compiled"), []
    for name, each in counts.items():
        faults += [f"{name}: {fault}" for fault in over_budget(each, allowed[name])]
        numbers = map(str, (each.launches, each.volumes, each.batches))
        table.add_row(name, *numbers, " / ".join(map(str, allowed[name].values())))
    Console().print(table)
    print("".join(f"FAILED {each}\n" for each in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
