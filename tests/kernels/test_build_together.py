"""Kernels that are built together and not launched. A driver that knows no device stands in for the GPU's."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hasten.kernels.build_together import built_together

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the kernels that Triton compiles."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from hasten.nets.surgery import normact_triton

    stand_in: Any = SimpleNamespace(
        launcher_cls=lambda src, metadata: None,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", stand_in)
    alone = threading.Lock()

    def parse(kernel: Any, parse: Any = JITFunction.parse) -> Any:
        assert alone.acquire(blocking=False), "Python 3.11 may fail where two threads parse"
        time.sleep(0.005)
        alone.release()
        return parse(kernel)

    monkeypatch.setattr(JITFunction, "parse", parse)
    built: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda *_, fn, **__: built.append(fn.jit_function.__name__)
    )
    yield built
    for name in dir(normact_triton):
        if name.endswith("_kernel"):
            getattr(normact_triton, name).device_caches.clear()


@needs_triton
def test_kernels_of_both_passes_are_built_once_and_do_not_run(compiler: list[str]) -> None:
    from hasten.nets.surgery.normact_triton import triton_norm_act

    def passes() -> None:
        for channels in (16, 64, 128):
            image = torch.zeros(2, channels, 8, 8, 8).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
            result = triton_norm_act(image, channels, None, None, 0.0, 1e-5)[0]
            # In a thread of its own, as for a GPU.
            thread = threading.Thread(target=lambda result=result: result.sum().backward())
            thread.start()
            thread.join()

    with built_together():
        passes()
    images, sizes = ["moments", "apply", "sums", "gradient"], ["merge", "totals"]
    assert sorted(compiler) == sorted(f"{name}_kernel" for name in [*images, *images, *sizes])
    with built_together():
        passes()
    assert len(compiler) == 10


@needs_triton
def test_what_launches_a_kernel_is_built_with_it(compiler: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    from hasten.nets.surgery.normact_triton import triton_norm_act

    launched: list[str] = []
    monkeypatch.setattr(driver.active, "launcher_cls", lambda src, metadata: launched.append(metadata.name))
    with built_together():
        triton_norm_act(torch.zeros(2, 16, 8, 8, 8), 16, None, None, 0.0, 1e-5)
    assert compiler
    assert sorted(launched) == sorted(compiler)


@needs_triton
def test_kernels_of_others_are_launched(compiler: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.jit import JITFunction

    seen = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *_, grid, warmup: seen.append((self.fn.__module__, warmup)))
    with built_together():
        for module in ("hasten.kernels.columns", "theirs"):
            JITFunction.run(SimpleNamespace(fn=SimpleNamespace(__module__=module)), grid=(1,), warmup=False)
    assert seen == [("hasten.kernels.columns", True), ("theirs", False)]


@needs_triton
def test_an_error_ends_the_block_and_launches_work_again(compiler: list[str]) -> None:
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run
    with pytest.raises(ValueError, match="no"), built_together():
        raise ValueError("no")
    assert JITFunction.run is launch
    assert compiler == []
