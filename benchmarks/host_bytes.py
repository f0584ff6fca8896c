"""The memory of a step on the host, tensor by tensor."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HostBytes(TorchDispatchMode):
    """Counts the bytes of the live tensors that were created within it, and their peak.

    Temporary memory inside a single operation is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._note(tensor, created=False)
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._note(tensor, created=True)
        return output

    def _note(self, tensor: Tensor, *, created: bool) -> None:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes:
            return
        # An input that no operation in here created existed before.
        size = storage.nbytes() if created else 0
        self._sizes[storage._cdata] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, storage._cdata).atexit = False

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
