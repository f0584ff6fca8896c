"""Named ranges, so that a profile (torch.profiler's, Nsight's) itemises a program by its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hasten.augment.chain import Stage, Warp


@contextmanager
def span(name: str) -> Iterator[None]:
    """A range in torch.profiler's trace and, with CUDA, in Nsight's (NVTX)."""
    with torch.profiler.record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


class Range:
    """Wraps any transform, or runs as a context, as MONAI's `Range` does: `Range("crop")(transform)`.

    The wrapped transform is the same object to those who look at its attributes and class.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def __call__(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        name = self.name or type(transform).__name__
        inner = type(transform)

        def run(itself: Any, *arguments: Any, **options: Any) -> Any:
            with span(name):
                return inner.__call__(itself, *arguments, **options)

        # A class of its own for this object: `isinstance`, lowering and hashing see the transform that it was.
        transform.__class__ = type(inner.__name__, (inner,), {"__call__": run, "__module__": inner.__module__})
        return transform

    def __enter__(self) -> None:
        self._open = span(self.name or "range")
        self._open.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def name_of(stage: Stage) -> str:
    """What a profile calls a stage: `Spatial+Mirror`, `GaussianNoise`, `crop`."""
    if isinstance(stage, Warp):
        names = {each.position: type(each.op).__name__ for reading in stage.readings.values() for each in reading.ops}
        return "+".join(names[position] for position in sorted(names)) or "crop"
    return str(getattr(stage.op, "name", None) or type(stage.op).__name__)
