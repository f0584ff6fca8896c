"""Detection of out-of-memory errors, and of settings that must lead to one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hasten.config.fingerprint import Fingerprint
from hasten.config.settled import PlannedRun
from hasten.config.size import size_text
from hasten.devices import total_bytes

_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "defaultcpuallocator",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
"""Messages of libraries that raise a generic error for a lack of memory."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that device or host memory was short."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)


@contextmanager
def out_of_memory_ends_block(on: bool = True) -> Iterator[None]:
    """A lack of memory ends the block without an error, unless not `on`. Nothing keeps its tensors alive afterwards."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not on or not out_of_memory(error):
            raise


def memory_mistakes(
    config: PlannedRun, fingerprint: Fingerprint, *, num_outputs: int, device: torch.device, num_ranks: int = 1
) -> list[str]:
    """Sizes that no step could hold in all the memory of `device`.

    Lower bounds only: float32 images and uint8 labels of a rank's batch, and scores of a window. What passes may still
    be too much.
    """
    channels, total = len(fingerprint.channels), total_bytes(device)
    patch, window, batch = config.sample.patch, config.infer.patch, -(-config.sample.batch_size // num_ranks)
    of_batch = batch * math.prod(patch) * (4 * channels + 1)
    sizes = {
        f"sample.patch, sample.batch_size: {batch} patches of {list(patch)}": of_batch,
        f"infer.patch: scores of a window of {list(window)}": 4 * math.prod(window) * (channels + num_outputs),
    }
    return [
        f"{what} take {size_text(size)}, but {device} has {size_text(total)}; give less"
        for what, size in sizes.items()
        if size > total
    ]
