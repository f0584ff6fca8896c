"""CUDA tensors without values, on a machine without a GPU: nothing is computed, but what would stop a GPU is an error.

A read of a value, a size that depends on values and a mix of devices raise in torch's own FakeTensorMode. What it lets
through, copies between host and device, raises `HostCopy` here: the host waits for each of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.augment.program import Segment
from tools.gpu_dry.backward import backward

CUDA = torch.device("cuda", 0)
PATCHES: dict[str, Callable[..., Any]] = {
    # Autocast and the gradient scaler switch themselves off where there is no device.
    "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
    "torch.cuda.is_bf16_supported": lambda *_, **__: True,
    "torch.cuda.mem_get_info": lambda *_: (2**33, 2**33),
    "torch.Tensor.backward": backward,
}


class HostCopy(RuntimeError):
    """A copy between host and device."""


class NoHostCopies(TorchDispatchMode):
    """Raises HostCopy for every copy between host and device, but those that are asynchronous."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        options = kwargs or {}
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "device_put", "copy_") and not options.get("non_blocking"):
            source = args[1] if name == "copy_" else args[0]
            goal = args[0].device if name == "copy_" else options.get("device", source.device)
            goal = torch.device(args[1]) if name == "device_put" else goal
            if isinstance(source, Tensor) and "cuda" in {goal.type, source.device.type} != {"cuda"}:
                raise HostCopy(f"{func} from {source.device} to {goal}")
        return func(*args, **options)


def _changes_nothing(*_: Any, **__: Any) -> None:
    """What a fused update does to the form of tensors."""


# torch's fake tensors know AdamW's fused update at a rate that is a number, and not these.
_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")
for _overload in ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adamw_.tensor_lr"):
    _LIBRARY.impl(_overload, _changes_nothing)


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Inside, tensors are fake, those on `cuda` included. Copies are errors within `NoHostCopies` only."""
    torch._C._ensureCUDADeviceGuardSet()
    patches = [mock.patch(name, answer) for name, answer in PATCHES.items()]
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        warnings.simplefilter("ignore")
        for each in patches:
            each.start()
        try:
            yield mode
        finally:
            for each in patches:
                each.stop()


@contextmanager
def triton_works() -> Iterator[None]:
    """Inside, Hasten takes its Triton kernels for tensors on the fake device; to be recorded, as none can run."""
    answers: dict[str, Callable[..., Any]] = {
        "hasten.kernels.use._works_on": lambda _: True,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.device_of": lambda _: nullcontext(),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(name, answer))
        yield


def on_cuda(segment: Segment) -> Segment:
    """A segment of the host with its cases on the fake device. Only inside `fake_cuda`."""
    assert isinstance(segment.order, partial)
    order = {key: each.to(CUDA) if isinstance(each, Tensor) else each for key, each in segment.order.keywords.items()}
    return replace(
        segment, store=segment.store.to(CUDA), seed=segment.seed.to(CUDA), device=CUDA,
        order=partial(segment.order.func, **order),
    )  # fmt: skip


def moved(network: nn.Module) -> nn.Module:
    """The network, moved to the fake device in its memory format. Only inside `fake_cuda`."""
    for module in network.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                # Twice: fake tensors change the strides of sides of 1 the first time.
                there = torch.empty_like(torch.empty_like(weight.detach(), device=CUDA))
                module._parameters[name] = nn.Parameter(there, weight.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(CUDA)
    return network


def keep_format(network: nn.Module, layout: torch.memory_format) -> None:
    """Make layers give back the memory format, as a GPU does and its stand-in does not."""
    for layer in network.modules():
        if isinstance(layer, _ConvNd | nn.Upsample):
            layer.register_forward_hook(lambda _, __, result: result.contiguous(memory_format=layout))


def expect(name: str, value: Any, wanted: Any) -> None:
    """Raises AssertionError with both."""
    if value != wanted:
        raise AssertionError(f"{name}: {value}, expected {wanted}")
