"""Builds the Triton kernels of some calls together: one takes 0.5 s, mostly outside of Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hasten.observe.cores import usable_cores


@contextmanager
def built_together() -> Iterator[None]:
    """Inside, Hasten's Triton kernels are not launched; after it they are built. What they would write is 0.

    Covers the launches of all threads, as a backward pass has its own; in those, what is not written is undefined.
    Kernels that were built before cost nothing, and one that can't be built raises at its launch. Does nothing with a
    Triton that can't build in the background.
    """
    try:
        from triton import AsyncCompileMode
        from triton.runtime._async_compile import active_mode
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield
        return
    launch, parse, parsing = JITFunction.run, JITFunction.parse, Lock()
    with _Builders(usable_cores()) as pool:
        building = AsyncCompileMode(pool, ignore_errors=True)

        def build(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if not kernel.fn.__module__.startswith("hasten."):
                return launch(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            token = active_mode.set(building)
            try:
                return launch(kernel, *args, grid=grid, warmup=True, **kwargs)
            finally:
                active_mode.reset(token)

        def parsed(kernel: Any) -> Any:
            with parsing:  # Python 3.11 raises SystemError where two threads build a syntax tree at once
                return parse(kernel)

        JITFunction.run, JITFunction.parse = build, parsed
        try:
            with _Zeros():
                yield
        finally:
            JITFunction.run = launch
            with building:
                pass  # waits for all
            JITFunction.parse = parse


class _Builders(ThreadPoolExecutor):
    """Builds what launches a kernel, too: C code, which takes its compiler longer than the kernel takes Triton."""

    def submit(self, compiled: Callable[[], Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        from triton.runtime.driver import driver

        def built() -> Any:
            kernel = compiled()
            driver.active.launcher_cls(kernel.src, kernel.metadata)  # Triton keeps it on the disk
            return kernel

        return super().submit(built)


class _Zeros(TorchFunctionMode):
    """Fills new memory, so that what follows from kernels that do not run stays within bounds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FILLED.get(function, function)(*args, **(kwargs or {}))


_FILLED: dict[Any, Any] = {
    torch.empty: torch.zeros,
    torch.empty_like: torch.zeros_like,
    Tensor.new_empty: Tensor.new_zeros,
}
