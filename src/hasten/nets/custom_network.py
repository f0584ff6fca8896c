"""A user's network: built from the code that `network.name` names, and tested before training."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.config.networks import GIVEN_BY_RUN
from hasten.config.schema import NetworkConfig, Triple
from hasten.config.user_code import UserCode, is_file, load_user_code, raised_text, require_same_source
from hasten.nets.random_state import random_state_kept

log = logging.getLogger(__name__)

_SIDES = (16, 24, 32, 48, 64, 96)
"""Sides of the images that are tried in turn: multiples of the divisors that networks usually need."""
_SMALL = 32
"""Voxels along a side of a small image: at least one is left after five halvings."""
_CODE_ERRORS = (TypeError, NameError, AttributeError, LookupError, NotImplementedError, AssertionError)
"""Errors that do not depend on the image size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomNetwork:
    """The user's code and the arguments of a run."""

    code: UserCode
    setting: str
    """`network.name` with its value, which errors begin with."""
    args: dict[str, Any]
    spatial_dims: int
    num_channels: int
    num_classes: int

    @property
    def asks_for_patch(self) -> bool:
        """Whether the network is built for images of one size."""
        return "patch" in _parameters(self.code.value, self.setting)

    def build(self, patch: Sequence[int]) -> nn.Module:
        """The network for patches of that size, without the depth in 2-D. Raises ValueError if it can't be built."""
        available = {
            "in_channels": self.num_channels,
            "out_channels": self.num_classes,
            "spatial_dims": self.spatial_dims,
            "patch": tuple(patch),
        }
        assert tuple(available) == GIVEN_BY_RUN
        taken = _parameters(self.code.value, self.setting)
        given = {**{name: value for name, value in available.items() if name in taken}, **self.args}
        try:
            network = self.code.value(**given)
        except Exception as error:
            message = raised_text(error, self.code.path)
            raise ValueError(f"{self.setting}: {message} (called with {given}; see network.args)") from error
        if not isinstance(network, nn.Module) or not any(each.requires_grad for each in network.parameters()):
            raise ValueError(
                f"{self.setting}: returns a {type(network).__name__}; let it return an nn.Module with weights to train"
            )
        return network

    def scores(self, network: nn.Module, image: Tensor) -> Tensor:
        """The full-size output for an image (B, C, *S). Raises ValueError, `_WrongSize` where S may be why."""
        try:
            with torch.no_grad():
                output = network(image)
        except _CODE_ERRORS as error:
            raise ValueError(f"{self.setting}: {self._for(image)}{raised_text(error, self.code.path)}") from error
        except Exception as error:
            raise _WrongSize(f"{self.setting}: {self._for(image)}{raised_text(error, self.code.path)}") from error
        several = isinstance(output, list | tuple)
        scores = output[0] if several and len(output) else output
        expected = (image.shape[0], self.num_classes, *image.shape[2:])
        if not isinstance(scores, Tensor):
            raise ValueError(
                f"{self.setting}: {self._for(image)}gives a {type(output).__name__}; let it return scores of shape "
                f"{expected}, or a list of tensors that begins with them (deep supervision)"
            )
        if tuple(scores.shape) != expected:
            first = "as the first of several outputs " if several else ""
            kind = _WrongSize if tuple(scores.shape[:2]) == expected[:2] and scores.ndim == image.ndim else ValueError
            raise kind(
                f"{self.setting}: {self._for(image)}gives {first}{tuple(scores.shape)}; scores of shape {expected} are "
                "needed: (batch, out_channels, and the image's own sides)"
            )
        return scores

    def _for(self, image: Tensor) -> str:
        return f"with an image of {tuple(image.shape)} "


class _WrongSize(ValueError):
    """The network might accept an image of another size."""


def custom_network(config: NetworkConfig, *, num_channels: int, num_classes: int, spatial_dims: int) -> CustomNetwork:
    """The code that `config.name` names, which is executed, checked but not called.

    Raises ValueError, also where its source is not that of `config.digest`.
    """
    assert config.name is not None
    setting = f"network.name={config.name}"
    code = load_user_code(config.name, setting="network.name")
    require_same_source(code, config.digest, setting=setting, remedy="restore it (the run's checkpoints/ hold a copy)")
    if isinstance(code.value, nn.Module) or not callable(code.value):
        raise ValueError(
            f"{setting}: is a {type(code.value).__name__}; name a class, or a function that returns an nn.Module"
        )
    place, _, name = config.name.rpartition(":")
    home = getattr(code.value, "__module__", place)
    if not is_file(place) and home != place:
        raise ValueError(f"{setting}: is defined in {home}; write {home}:{name}, as the source of that is what counts")
    return CustomNetwork(
        code=code,
        setting=setting,
        args=dict(config.args),
        spatial_dims=spatial_dims,
        num_channels=num_channels,
        num_classes=num_classes,
    )


def _parameters(factory: Callable[..., Any], setting: str) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory).parameters)
    except (ValueError, TypeError):
        raise ValueError(f"{setting}: its parameters can't be inspected; wrap it in your own function") from None


def find_divisor(factory: CustomNetwork) -> Triple:
    """What each side (D, H, W) of an image must be a multiple of, found by trying small images.

    A network that takes `patch` is rebuilt for each size. Raises ValueError with the reason if it accepts none of
    them.
    """
    with random_state_kept(torch.device("cpu")):
        network = None if factory.asks_for_patch else factory.build([]).eval()
        side = _first_side(factory, network)
        units = [
            next(step for step in range(1, side + 1) if side % step == 0 and _takes(factory, network, side, axis, step))
            for axis in range(factory.spatial_dims)
        ]
    depth, height, width = (*(1,) * (3 - factory.spatial_dims), *units)
    return depth, height, width


def _first_side(factory: CustomNetwork, network: nn.Module | None) -> int:
    for side in _SIDES:
        try:
            _try(factory, network, [side] * factory.spatial_dims)
            return side
        except _WrongSize:
            if side == _SIDES[-1]:
                raise
    raise AssertionError


def _takes(factory: CustomNetwork, network: nn.Module | None, side: int, axis: int, step: int) -> bool:
    """Whether images may be `step` longer along an axis; by a whole `side` they surely may, if by any."""
    if step == side:
        return True
    sides = [side] * factory.spatial_dims
    sides[axis] += step
    try:
        _try(factory, network, sides)
    except ValueError:
        return False
    return True


def _try(factory: CustomNetwork, network: nn.Module | None, sides: Sequence[int]) -> None:
    """network: None builds one for these sides."""
    network = factory.build(sides).eval() if network is None else network
    factory.scores(network, torch.zeros(1, factory.num_channels, *sides))


def small_side(side: int, by: int) -> int:
    """Side of a small image that a network should take: a multiple of `by`, and no more than the patch's side.

    A network that pads takes any side, but leaves its norms nothing of a very short one.
    """
    return min(side, max(2 * by, -(-_SMALL // by) * by))


def check_custom_network(factory: CustomNetwork, patch: Triple, unit: Triple) -> None:
    """Build the network and take a small batch through it, in training and in evaluation.

    Raises ValueError where that fails or gives no scores; of several outputs (deep supervision), in training each is
    one of the loss's heads, the first at full size, and otherwise the first alone is used.
    """
    sides = patch[3 - factory.spatial_dims :]
    if not factory.asks_for_patch:
        sides = tuple(map(small_side, sides, unit[3 - factory.spatial_dims :]))
    with random_state_kept(torch.device("cpu")):
        network = factory.build(patch[3 - factory.spatial_dims :])
        image = torch.randn(2, factory.num_channels, *sides)
        for training in (True, False):
            try:
                factory.scores(network.train(training), image)
            except _WrongSize as error:
                raise ValueError(f"{error}; or use another sample.patch (given {list(patch)})") from error
            if training:
                _check_heads(factory, network, image)


def _check_heads(factory: CustomNetwork, network: nn.Module, image: Tensor) -> None:
    with torch.no_grad():
        output = network(image)
    heads = output if isinstance(output, list | tuple) else [output]
    for head in heads:
        if not isinstance(head, Tensor) or head.ndim != image.ndim or tuple(head.shape[:2]) != (2, factory.num_classes):
            raise ValueError(
                f"{factory.setting}: gives {tuple(getattr(head, 'shape', ()))} as one of several outputs in training; "
                f"each must be scores of shape (batch, {factory.num_classes}, ...), for deep supervision"
            )
    _warn_of_probabilities(factory, heads[0])


def _warn_of_probabilities(factory: CustomNetwork, scores: Tensor) -> None:
    """A network that ends in soft-max or sigmoid learns badly, as losses take them of its scores again."""
    low, high, total = scores.min(), scores.max(), scores.sum(1)
    if scores.shape[1] > 1 and low >= 0 and torch.allclose(total, torch.ones_like(total), atol=1e-3):
        last = "softmax"
    elif low > 0 and high < 1:
        last = "sigmoid"
    else:
        return
    log.warning(
        "%s: gives probabilities, as from a %s at its end, but Hasten's losses and predictions take it of the scores "
        "themselves; return the scores before it, unless your own loss.name needs probabilities",
        factory.setting,
        last,
    )


class _Reads(TorchDispatchMode):
    """Detects reads of a tensor's value, as by `if x.mean() > 0` or `.item()`."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in _READING
        return func(*args, **(kwargs or {}))


_READING = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


def decides_by_values(network: nn.Module, image: Tensor) -> bool:
    """Whether the network's control flow depends on values, so that another image may run other operations.

    image: (B, C, *S). The network and the random state are left as they are.
    """
    network_copy, reads = copy.deepcopy(network), _Reads()
    with random_state_kept(image.device), torch.no_grad(), reads:
        network_copy(image)
    return reads.seen
