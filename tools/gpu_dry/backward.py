"""Autograd's backward pass in Python, for tensors without values.

Autograd's own engine asks the driver for its contexts, so that it can't run where there is none. The nodes of a graph
can: here they are called one by one, with what the engine does between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def backward(root: Tensor, gradient: Tensor | None = None) -> None:
    """`root.backward(gradient)`: adds to `grad` of every leaf. Raises AssertionError where a dtype drifts."""
    start: Any = root.grad_fn
    arriving: dict[Any, dict[int, Tensor]] = {
        start: {root.output_nr: torch.ones_like(root) if gradient is None else gradient}
    }
    for node in _sorted(start):
        result = arriving.pop(node, None)
        if result is None:
            continue
        if hasattr(node, "variable"):
            _accumulate(node.variable, result[0])
            continue
        given = _called(node, [result.get(number) for number in range(len(node._input_metadata))])
        for (after, number), value in zip(node.next_functions, given, strict=False):
            if after is not None and value is not None:
                slots = arriving.setdefault(after, {})
                value = _shaped(value, after._input_metadata[number], node)
                slots[number] = slots[number] + value if number in slots else value


def _sorted(start: Any) -> Iterator[Any]:
    """Every node before those that it hands its gradients to."""
    results: list[Any] = []
    seen: set[Any] = set()
    waiting = [(start, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            results.append(node)
        elif node not in seen:
            seen.add(node)
            waiting.append((node, True))
            waiting += [(after, False) for after, _ in node.next_functions if after is not None and after not in seen]
    return reversed(results)


def _called(node: Any, gradients: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    # A node of a torch.autograd.Function is its context, which is no callable.
    result = node(*gradients) if callable(node) else node.apply(*gradients)
    return result if isinstance(result, tuple) else (result,)


def _shaped(gradient: Tensor, metadata: Any, node: Any) -> Tensor:
    """As the engine hands it on: of the value's type, and summed where the value was broadcast."""
    if gradient.dtype != metadata.dtype:
        # Of a hand-written backward that is a fault; torch's own nodes leave it to the engine.
        assert callable(node), f"{node.name()} gives a gradient of {gradient.dtype} for a value of {metadata.dtype}"
        gradient = gradient.to(metadata.dtype)
    return gradient if gradient.shape == metadata.shape else gradient.sum_to_size(metadata.shape)


def _accumulate(leaf: Tensor, gradient: Tensor) -> None:
    if leaf.grad is None:
        leaf.grad = torch.empty_like(leaf).copy_(gradient)
    else:
        leaf.grad += gradient
