"""Drawing and rendering of every chain as one graph: `python -m tools.gpu_dry.traces`.

A break in the graph is an error, and so is a batch that differs from the one that was not traced. Runs on the host.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hasten.augment.program import Segment
from hasten.augment.render import render
from tests.contracts.test_operations import channels_of, crops, drawn_by_prob, fixed, segment
from tools.gpu_dry.augmentation import preset_chains, preset_segment
from tools.gpu_dry.table import Check, run_checks


def trace_checks() -> Iterator[Check]:
    for dims in (2, 3):
        for name in preset_chains(dims, 16):
            make = partial(preset_segment, name, dims, 16, "float16")
            yield Check("presets", f"{dims}-D {name}", partial(_check, make, "aot_eager"))
        for op in (*drawn_by_prob(dims), *fixed(dims), *crops(dims)):
            make = partial(segment, op, dims, channels_of(op))
            # The tests of each operation have it compiled; here is what stands around it.
            yield Check("operations", f"{dims}-D {op!r}"[:90], partial(_check, make, "eager"))


def _check(make: Callable[[], Segment], backend: str) -> None:
    own = make()
    sample = torch.arange(own.batch_size)
    draws = own.drawn(sample)
    _same(_traced(backend, own.drawn, sample), draws)
    arguments = (own.stages, own.stored(), draws, own.store.spatial_dims, {})
    _same(_traced(backend, render, *arguments), render(*arguments))


def _traced(backend: str, function: Callable[..., Any], *arguments: Any) -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*arguments)


def _same(result: Any, wanted: Any) -> None:
    for one, other in zip(pytree.tree_leaves(result), pytree.tree_leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride(), f"strides {one.stride()} and {other.stride()}"
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def main() -> int:
    logging.disable(logging.WARNING)
    return run_checks("chains as one graph", trace_checks())


if __name__ == "__main__":
    sys.exit(main())
