"""Builds the Triton kernels of some calls together: one takes 0.1 to 0.3 s, mostly outside of Python's lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


@contextmanager
def built_together() -> Iterator[None]:
    """Inside, Hasten's Triton kernels are not launched, so that what they write is undefined; after it they are built.

    Covers the launches of all threads, as a backward pass has its own. Kernels that were built before cost nothing, and
    one that can't be built raises at its launch. Does nothing with a Triton that can't build in the background.
    """
    try:
        from triton import AsyncCompileMode
        from triton.runtime._async_compile import active_mode
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    launch = JITFunction.run
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        building = AsyncCompileMode(pool, ignore_errors=True)

        def build(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if not kernel.fn.__module__.startswith("hasten."):
                return launch(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            token = active_mode.set(building)
            try:
                return launch(kernel, *args, grid=grid, warmup=True, **kwargs)
            finally:
                active_mode.reset(token)

        JITFunction.run = build
        try:
            yield
        finally:
            JITFunction.run = launch
            with building:
                pass  # waits for all
