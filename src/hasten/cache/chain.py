"""A chain of transforms in two parts: what is the same every time and is cached, and what starts with a random draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

Transform = Callable[[Any], Any]
LARGE_BYTES = 2**18
"""Bytes from which mapping costs less than copying."""


@dataclass(frozen=True, slots=True)
class SplitCompose:
    """A MONAI `Compose` and how many of its transforms are deterministic."""

    compose: Any
    fixed: int

    def prepare(self, item: Any) -> Any:
        """The deterministic part; may run on several threads."""
        return self.compose(item, end=self.fixed, threading=True) if self.fixed else item

    def draw(self, item: Any) -> Any:
        """The part from the first random transform on."""
        return self.compose(item, start=self.fixed) if self.fixed < len(self.compose.transforms) else item

    @property
    def fixed_transforms(self) -> tuple[Transform, ...]:
        return tuple(self.compose.transforms[: self.fixed])


def split_chain(transform: Transform | Sequence[Transform] | None) -> SplitCompose:
    """Split before the first transform that may draw random numbers: a random one, or one that MONAI does not know.

    transform: a MONAI `Compose`, a sequence of transforms, one of them, or None. A callable of your own, which MONAI
    cannot know, counts as random unless it has `deterministic = True`.
    """
    from monai.transforms import Compose
    from monai.transforms.traits import RandomizableTrait
    from monai.transforms.transform import Transform as MonaiTransform

    compose = transform if isinstance(transform, Compose) else Compose(transform)
    if type(compose) is not Compose:
        return SplitCompose(Compose([compose]), 0)  # OneOf and the like draw which of theirs to run
    compose = compose.flatten()

    def draws(each: Transform) -> bool:
        if getattr(each, "deterministic", False):
            return False
        return isinstance(each, RandomizableTrait) or not isinstance(each, MonaiTransform)

    first = next((number for number, each in enumerate(compose.transforms) if draws(each)), len(compose.transforms))
    return SplitCompose(compose, first)


def copy_item(value: Any) -> Any:
    """A copy of a cached item that transforms may change: containers, arrays, tensors and their metadata are new.

    Far cheaper than `copy.deepcopy`. Other objects are shared.
    """
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            copied = torch.Tensor.clone(value).as_subclass(type(value))
        if hasattr(value, "__dict__"):
            copied.__dict__.update(copy_item(vars(value)))
        return copied
    if isinstance(value, dict):
        return {key: copy_item(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_item(each) for each in value)
    return value.copy() if isinstance(value, np.ndarray | set) else value


def is_large(value: Any) -> bool:
    """Whether an item's arrays take so much that copying them costs more than mapping them."""
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor | np.ndarray)) >= LARGE_BYTES


def describe_item(data: Sequence[Any], index: int) -> str:
    """An item as an error message names it: its position and its files."""
    item = data[index]
    text = item if isinstance(item, str) else ""
    if isinstance(item, dict):
        files = ((key, value) for key, value in item.items() if isinstance(value, str) or hasattr(value, "__fspath__"))
        text = ", ".join(f"{key}={value}" for key, value in files)
    return f"item {index} ({text})" if text else f"item {index}"
