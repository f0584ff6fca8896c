"""Whether Hasten's Triton kernels can run: on a GPU, with Triton and a C compiler, outside of compilation.

And the sides of their tiles.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from hasten.devices import kind_of
from hasten.files import first_line

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels for networks read and write; they compute in float32."""
_LOCK = threading.Lock()
"""Held while Triton is tried."""
_off = threading.Event()


@contextmanager
def triton_as(setting: bool | None) -> Iterator[None]:
    """A false `train.fused_kernels` turns every Triton kernel of this process off for the block."""
    if setting is False:
        _off.set()
    try:
        yield
    finally:
        _off.clear()


def triton_runs(tensor: Tensor) -> bool:
    """Whether Triton kernels may run now on this tensor, of any shape and type.

    Not while code is compiled or traced, where plain operations are fused by the compiler, nor below functorch's
    transforms. Importing and trying Triton happens once for each device.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    # Triton launches on the current device.
    return triton_works(tensor.device) and tensor.device.index == torch.cuda.current_device()


def kernels_take(image: Tensor) -> bool:
    """Whether Triton kernels for a network may run now on this tensor of any shape; see `DTYPES`, `triton_runs`."""
    return image.dtype in DTYPES and triton_runs(image)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`, as for the sides of a tile."""
    return 1 << (least - 1).bit_length()


def triton_works(device: torch.device) -> bool:
    """Whether Triton kernels can run on a device at all."""
    if not kind_of(device).triton or _off.is_set():
        return False
    with _LOCK:  # a thread of `try_triton_ahead` may be at it
        return _works_on(device)


def try_triton_ahead(device: torch.device) -> None:
    """Begin to import and try Triton, which takes a second, beside whatever the caller does next; on a GPU alone."""
    if kind_of(device).triton:
        threading.Thread(target=triton_works, args=(device,), name="triton").start()


@cache
def _works_on(device: torch.device) -> bool:
    """Whether a kernel can be built and launched: Triton is installed, supports the card and has a C compiler."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from hasten.kernels.probe import launch

        launch(device)
    except Exception as error:
        log.warning("Triton does not work on %s (%s); torch's own operations are used", device, first_line(error))
        return False
    return True
