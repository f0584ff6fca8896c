"""What torch.compile makes of a batch's rendering for an H100: `python -m tools.gpu_dry.inductor [--write]`.

The Triton source is written but not compiled. Of each chain: how many kernels are launched, and how many bytes they
read and write, in batches. Fails where that is above `budget.json`; `--write` takes today's numbers for the budget.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch._inductor.graph import GraphLowering

from hasten.augment.program import Segment
from hasten.augment.render import render
from tools.gpu_dry.augmentation import preset_segment
from tools.gpu_dry.fake_device import fake_cuda, on_cuda
from tools.gpu_dry.h100 import h100

BUDGET = Path(__file__).with_name("budget.json")
SIDE, BATCH = 128, 2
CHAINS = ("nnunet", "default", "brats", "spleen")
_OPTIONS: dict[str, Any] = {
    "assert_indirect_indexing": False,  # as Hasten compiles it
    "joint_graph_constant_folding": False,  # computes on the device
}
_LARGE = 1 << 20
"""Bytes from which on a buffer counts as a volume."""


class _Written(Exception):
    """The source is there; nothing more is needed."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one rendered batch."""

    launches: int
    """Kernels that are started, those of torch's libraries among them."""
    volumes: int
    """Of these, kernels that read or write something as large as a volume."""
    batches: float
    """Bytes that kernels read and write of what kernels made, over the bytes of the finished batch."""


def source_of(function: Callable[..., Any], *arguments: Any) -> str:
    """The module that inductor writes for a call of `function` on fake tensors. Inside `h100` and `fake_cuda`."""
    found: list[str] = []

    def keep(graph: GraphLowering) -> None:
        found.append(graph.codegen()[0].value)
        raise _Written

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=False, options=_OPTIONS)
    # Without caches: a graph of this machine must not be taken for one of a card.
    uncached = torch.compiler.config.patch(force_disable_caches=True)
    with uncached, mock.patch.object(GraphLowering, "compile_to_module", keep):
        try:
            compiled(*arguments)
        except Exception:
            if not found:
                raise
    return found[0]


def rendering_source(segment: Segment) -> str:
    """The source for the rendering of a batch, traced as `hasten.augment.make_program` has it traced."""
    with h100(), fake_cuda():
        own = on_cuda(segment)
        draws = next(own.draws(0, 1))
        store = own.store
        for tensor in (*store.values.values(), store.shape, store.offset):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return source_of(render, own.stages, own.stored(), draws, store.spatial_dims, {})


def traffic_of(source: str) -> Traffic:
    """Read from the wrapper's code: which buffers it makes, and which each kernel is given."""
    call = source[source.index("def call(") :]
    sizes: dict[str, int] = {}
    launches = volumes = moved = 0
    for line in call.splitlines():
        line = line.strip()
        if made := re.match(r"(\w+) = empty_strided_cuda\((\(.*?\)), \(.*?\), torch\.(\w+)\)", line):
            sizes[made[1]] = _bytes(made[2], made[3])
        elif again := re.match(r"(\w+) = (?:reinterpret_tensor\()?(buf\d+)[;,]", line):
            sizes.setdefault(again[1], sizes.get(again[2], 0))
        elif stated := re.match(r"assert_size_stride\((buf\d+), (\(.*?\)),", line):
            sizes.setdefault(stated[1], _bytes(stated[2], "float32"))
        if run := re.match(r"(?:buf\d+ = )?(triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\((.*)", line):
            each = [sizes.get(name, 0) for name in re.findall(r"\bbuf\d+\b", run[2])]
            # What is changed in place is read and written.
            each += [sizes.get(name, 0) for name in _in_place(source, run[1], run[2])]
            launches, moved = launches + 1, moved + sum(each)
            volumes += any(size >= _LARGE for size in each)
    result = re.search(r"return \((.*)\)", call)
    assert result is not None
    whole = sum(sizes.get(name, 0) for name in re.findall(r"\bbuf\d+\b", result[1]))
    return Traffic(launches, volumes, round(moved / whole, 1))


def _bytes(shape: str, dtype: str) -> int:
    sides = [int(side) for side in re.findall(r"\d+", shape)]
    return math.prod(sides) * getattr(torch, dtype).itemsize


def _in_place(source: str, call: str, arguments: str) -> list[str]:
    """The arguments of a kernel that it both reads and writes."""
    name = call.removesuffix(".run")
    signature = re.search(rf"def {re.escape(name)}\((.*?)\):", source)
    if signature is None:
        return []
    parameters = [each.strip() for each in signature[1].split(",")]
    given = [each.strip() for each in arguments.split(",")]
    return [value for one, value in zip(parameters, given, strict=False) if one.startswith("in_out_ptr")]


def over_budget(found: Traffic, allowed: dict[str, float]) -> Sequence[str]:
    """What is above it, in words."""
    values = {name: getattr(found, name) for name in allowed}
    return [f"{name}: {values[name]} above {limit}" for name, limit in allowed.items() if values[name] > limit]


def main() -> int:
    logging.disable(logging.WARNING)
    written = {} if "--write" in sys.argv else json.loads(BUDGET.read_text(encoding="utf-8"))
    table = Table("chain", "launches", "of volumes", "batches moved", "budget", title_justify="left")
    table.title = f"rendering for sm_90, {BATCH} x {SIDE}^3, float16 cases"
    faults: list[str] = []
    for name in CHAINS:
        source = rendering_source(preset_segment(name, 3, SIDE, "float16", batch_size=BATCH))
        found = traffic_of(source)
        values = {field: getattr(found, field) for field in ("launches", "volumes", "batches")}
        if "--write" in sys.argv:
            written[name] = values
        faults += [f"{name}: {each}" for each in over_budget(found, written[name])]
        table.add_row(name, *map(str, values.values()), " / ".join(map(str, written[name].values())))
    Console().print(table)
    if "--write" in sys.argv:
        BUDGET.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print("".join(f"FAILED {each}\n" for each in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
