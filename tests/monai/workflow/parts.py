"""Small parts that both MONAI's workflows and Hasten's are run with."""

from __future__ import annotations

from typing import Any

import torch
from monai.data import MetaTensor
from torch import Tensor, nn


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


def loss(scores: Tensor, label: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, label[:, 0].long())


class Watcher:
    """A handler that looks at an engine at each of some events."""

    def __init__(self, watched: list[Any]) -> None:
        self.watched, self.seen = watched, list[Any]()

    def attach(self, engine: Any) -> None:
        for event in self.watched:
            engine.add_event_handler(event, self.look, event)

    def look(self, engine: Any, event: Any) -> None:
        raise NotImplementedError


def batches(count: int = 4, size: int = 2, *, meta: bool = False) -> list[dict[str, Any]]:
    """Dicts as a loader gives them: image (B, 1, 6, 6), label (B, 1, 6, 6), and a name for each sample."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(count):
        image: Tensor = torch.randn(size, 1, 6, 6, generator=generator)
        label: Tensor = torch.randint(0, 2, (size, 1, 6, 6), generator=generator)
        if meta:
            names = [f"case {number}.{sample}" for sample in range(size)]
            image, label = dressed(image, names), dressed(label, names)
        made.append({"image": image, "label": label, "name": [f"{number}.{sample}" for sample in range(size)]})
    return made


def dressed(values: Tensor, names: list[str]) -> MetaTensor:
    """As MONAI's collate makes it of items whose meta data holds a file name and an affine map."""
    from monai.data.utils import list_data_collate

    items = [
        MetaTensor(value, affine=torch.eye(4) * (number + 1), meta={"filename_or_obj": name})
        for number, (value, name) in enumerate(zip(values, names, strict=True))
    ]
    for number, item in enumerate(items):
        item.push_applied_operation({"class": "Flip", "number": number})
    return list_data_collate(items)


def snapshot(value: Any) -> Any:
    """A copy that later steps don't change, in plain types, meta data included."""
    if isinstance(value, MetaTensor) and value.ndim == 0:
        return value.as_tensor().detach().clone()  # a loss: only with MONAI has it meta data
    if isinstance(value, MetaTensor):
        return {
            "values": value.as_tensor().detach().clone(),
            "meta": snapshot(dict(value.meta)),
            "operations": snapshot(value.applied_operations),
        }
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        # An operation's "id" is the address of the transform that was applied.
        return {str(key): snapshot(one) for key, one in value.items() if key != "id"}
    if isinstance(value, (list, tuple)):
        return [snapshot(one) for one in value]
    return value


def difference(one: Any, other: Any, place: str = "") -> str | None:
    """Where two snapshots differ, and how; None where they are the same bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        equal = one.dtype == other.dtype and torch.equal(one, other)
        return None if equal else f"{place}: {one} and {other}"
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        parts = ((one[key], other[key], f"{place}.{key}") for key in one)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = ((*pair, f"{place}[{number}]") for number, pair in enumerate(zip(one, other, strict=True)))
    else:
        return None if type(one) is type(other) and one == other else f"{place}: {one!r} and {other!r}"
    return next((result for part in parts if (result := difference(*part))), None)


def same(one: Any, other: Any) -> bool:
    return difference(one, other) is None
