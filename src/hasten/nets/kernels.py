"""Where the Triton kernels of this package can run: on a GPU, with Triton and a C compiler, outside of compilation."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache

import torch
from torch import Tensor

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels read and write; they compute in float32."""


def power_of_two(least: int) -> int:
    """The smallest that is no less: the lengths of a tile's sides are powers of two."""
    return 1 << (least - 1).bit_length()


def kernels_take(image: Tensor) -> bool:
    """Whether Triton kernels of our own may run now on this tensor.

    Not while the network is compiled or traced, where plain operations are fused by the compiler, nor below functorch's
    transforms. Importing and trying Triton happens once for each device.
    """
    if not image.is_cuda or image.dtype not in DTYPES:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    return _works_on(image.device)


@cache
def _works_on(device: torch.device) -> bool:
    """Whether a kernel can be built and launched: Triton is installed, supports the card and has a C compiler."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from hasten.nets.kernels_probe import launch

        launch(device)
    except Exception as error:
        lines = str(error).strip().splitlines()
        log.warning(
            "Triton does not work on %s (%s); torch's own operations are used", device, lines[0] if lines else error
        )
        return False
    return True
