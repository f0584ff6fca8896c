from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from hasten.nets.surgery.reclass import ClassSwap, original, swap_class


class Doubled(ClassSwap):
    def forward(self: Any, image: Tensor) -> Tensor:
        return 2 * super().forward(image)  # type: ignore[misc,no-any-return]


class Raised(ClassSwap):
    def forward(self: Any, image: Tensor) -> Tensor:
        return 1 + super().forward(image)  # type: ignore[misc,no-any-return]


def test_the_last_mixin_is_the_outermost_and_each_comes_once() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    assert swap_class(layer, Doubled)
    assert swap_class(layer, Raised)
    assert not swap_class(layer, Doubled)
    assert layer(torch.ones(1)).item() == 3
    assert isinstance(layer, nn.Linear)
    assert type(layer).__name__ == "RaisedDoubledLinear"
    original(layer)
    assert type(layer) is nn.Linear


def test_two_of_a_kind_have_one_class() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    swap_class(one, Doubled)
    swap_class(other, Doubled)
    assert type(one) is type(other)


def test_it_is_copied_and_pickled_with_hooks_and_names() -> None:
    layer = nn.Linear(2, 3)
    swap_class(layer, Doubled)
    swap_class(layer, Raised)
    for twin in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is type(layer)
        assert list(twin.state_dict()) == ["weight", "bias"]
        assert torch.equal(twin(torch.ones(2)), layer(torch.ones(2)))
