"""How far two states are from each other, on one rank or over all of them."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor, distributed


def compare(result: Any, wanted: Any) -> float:
    """Largest difference of the tensors and numbers in two nested states, relative to the largest value of a tensor."""
    if isinstance(wanted, Tensor):
        if not isinstance(result, Tensor) or result.shape != wanted.shape or result.dtype != wanted.dtype:
            return float("inf")
        difference = (result.double() - wanted.double()).abs()
        return float((difference / wanted.double().abs().max().clamp(min=1.0)).max()) if wanted.numel() else 0.0
    if isinstance(wanted, dict):
        if not isinstance(result, dict) or list(result) != list(wanted):
            return float("inf")
        return max((compare(result[key], value) for key, value in wanted.items()), default=0.0)
    if isinstance(wanted, list | tuple):
        if len(result) != len(wanted):
            return float("inf")
        return max((compare(one, other) for one, other in zip(result, wanted, strict=True)), default=0.0)
    if isinstance(wanted, float):
        return abs(result - wanted) / max(1.0, abs(wanted))
    return 0.0 if result == wanted else float("inf")


def same_on_all(value: Any) -> bool:
    """Whether all ranks hold the same bits. value: nested states of tensors."""
    digest = hashlib.sha256()
    for tensor in _tensors(value):
        digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return len(set(everyones(digest.hexdigest()))) == 1


def everyones(value: Any) -> list[Any]:
    if not distributed.is_initialized():
        return [value]
    result: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(result, value)
    return result


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for one in inner for tensor in _tensors(one)]
