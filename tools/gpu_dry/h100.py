"""An H100 that is not there: what torch.compile asks of it while it writes source for it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

_CAPABILITY = 90
_SIZES: dict[str, Any] = {
    "multi_processor_count": 132, "major": 9, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "warp_size": 32,
}  # fmt: skip
_CARD = types.SimpleNamespace(
    name="H100", minor=0, total_memory=80 << 30, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
    gcnArchName="", **_SIZES,
)  # fmt: skip
_ANSWERS: dict[str, Callable[..., Any]] = {
    "get_device_properties": lambda *_, **__: _CARD,
    "get_device_capability": lambda *_: (9, 0),
    "current_device": lambda: 0,
    "device_count": lambda: 1,
    "is_available": lambda: True,
    "synchronize": lambda *_: None,
    "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
    "set_rng_state": lambda *_: None,
    "_exchange_device": lambda *_: 0,
    "_maybe_exchange_device": lambda *_: 0,
    "_lazy_init": lambda: None,
}


class _Driver:
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", _CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0


@contextmanager
def h100() -> Iterator[None]:
    """Inside, torch and Triton take one to be there; nothing may run on it."""
    hints = DeviceProperties(type="cuda", index=0, cc=_CAPABILITY, **_SIZES)
    properties = staticmethod(lambda *_: _CARD)
    torch._C._ensureCUDADeviceGuardSet()
    driver.set_active(_Driver())
    with ExitStack() as stack:
        for name, answer in _ANSWERS.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", answer))
        stack.enter_context(mock.patch.object(DeviceProperties, "create", return_value=hints))
        for place in (CudaInterface, CudaInterface.Worker):
            stack.enter_context(mock.patch.object(place, "get_device_properties", properties))
        stack.enter_context(mock.patch("torch.utils._triton.triton_hash_with_backend", return_value="none"))
        stack.enter_context(mock.patch("torch._subclasses.fake_tensor.init_gpu_context"))
        # No tensor is ever made on the card, constants included.
        stack.enter_context(mock.patch.object(FakeTensorMode, "avoid_device_init", True))
        yield
