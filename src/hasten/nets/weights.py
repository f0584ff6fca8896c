"""Matches the tensors of a state dict with another network's, by name and shape, and adapts those that nearly fit.

Pure functions: names and tensors in, names and tensors out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.config.patterns import first_few

State = Mapping[str, Tensor]
_LEAST = 0.05
"""Share of the numbers of the smaller side that must fit: names such as conv.weight are alike in any two networks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What a network loads from a state dict. Names are those of the network, except in `unused`."""

    values: dict[str, Tensor]
    """The tensors to load: `taken` and `adapted`, each in the shape of the network's."""
    prefixes: tuple[str, str]
    """(saved, here): names begin so on each side and are the same behind that."""
    taken: tuple[str, ...]
    adapted: dict[str, str]
    """How each was adapted."""
    left: dict[str, str]
    """Why each keeps its initial values."""
    unused: tuple[str, ...]
    """Saved names that the network has no place for."""


def fit_weights(here: State, saved: State) -> Fit:
    """Match a saved state dict with a network's, by name and shape.

    The pair of prefixes under which most tensors are the same counts. Image channels: filters of the first layer are
    shared out, so that equal channels give what they gave. Classes: tensors of the last layer stay. Raises ValueError
    that names both sides where (next to) nothing fits.
    """
    prefixes = common_prefixes(here, saved)
    theirs, ours = prefixes
    partner = {name: theirs + name.removeprefix(ours) for name in here if name.startswith(ours)}
    first = next((name for name, value in here.items() if value.ndim >= 3), "")  # whose filters read the image
    last = last_weight(here)
    channels, classes = (_pair(here, saved, partner, name, axis) for name, axis in ((first, 1), (last, 0)))
    taken, adapted, left = [], dict[str, str](), dict[str, str]()
    values: dict[str, Tensor] = {}
    for name, value in here.items():
        other = saved.get(partner.get(name, ""))
        if other is None:
            left[name] = "not in the file"
        elif other.shape == value.shape:
            values[name] = other
            taken.append(name)
        elif (fitted := _adapted(tuple(value.shape), other, channels)) is not None:
            values[name], adapted[name] = fitted, f"{_sides(other)} in the file, {_sides(value)} here"
        else:
            why = "classes differ" if _differ_by(value, other, classes) else "another shape"
            left[name] = f"{why}: {_sides(other)} in the file, {_sides(value)} here"
    used = {partner[name] for name in values} | {partner[name] for name in left if name in partner}
    unused = tuple(name for name in saved if name not in used)
    _require(here, saved, values)
    return Fit(values=values, prefixes=prefixes, taken=tuple(taken), adapted=adapted, left=left, unused=unused)


def common_prefixes(here: State, saved: State) -> tuple[str, str]:
    """(saved, here): the beginnings of names to take away so that most tensors have the same name and shape."""
    by_suffix: dict[str, list[tuple[str, str]]] = {}
    for name in here:
        for prefix, suffix in _cuts(name):
            by_suffix.setdefault(suffix, []).append((prefix, name))
    same: Counter[tuple[str, str]] = Counter()
    matches: Counter[tuple[str, str]] = Counter()
    for name, value in saved.items():
        for prefix, suffix in _cuts(name):
            for other, full in by_suffix.get(suffix, ()):
                matches[prefix, other] += 1
                same[prefix, other] += value.shape == here[full].shape
    return max(matches, key=lambda pair: (same[pair], matches[pair], -len(pair[0]) - len(pair[1])), default=("", ""))


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """(prefix with its dot, rest) at every dot, nothing cut off first."""
    parts = name.split(".")
    for count in range(len(parts)):
        prefix = ".".join(parts[:count])
        yield (f"{prefix}." if prefix else ""), ".".join(parts[count:])


def last_weight(weights: Mapping[str, object]) -> str:
    """Name of the last weight that is not an alias of an earlier one: the output layer's bias, if it has one."""
    pointers: set[int] = set()
    last = ""
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.numel() and value.data_ptr() not in pointers:
            pointers.add(value.data_ptr())
            last = name
    return last


def _pair(here: State, saved: State, partner: Mapping[str, str], name: str, axis: int) -> tuple[int, int] | None:
    """(size here, size saved) of one axis of a tensor that both sides have."""
    other = saved.get(partner.get(name, ""))
    if other is None or other.ndim != here[name].ndim or other.ndim <= axis:
        return None
    return here[name].shape[axis], other.shape[axis]


def _differ_by(one: Tensor, other: Tensor, pair: tuple[int, int] | None) -> bool:
    """Whether two shapes are the same but for axes of these two sizes."""
    if one.ndim != other.ndim or pair is None:
        return False
    return all(sides in (pair, (sides[0], sides[0])) for sides in zip(one.shape, other.shape, strict=True))


def _adapted(shape: tuple[int, ...], saved: Tensor, channels: tuple[int, int] | None) -> Tensor | None:
    if len(shape) != saved.ndim or not saved.is_floating_point():
        return None
    others = (*shape[:1], *shape[2:]) == (*saved.shape[:1], *saved.shape[2:])
    if len(shape) >= 3 and others and (shape[1], saved.shape[1]) == channels:
        return shared_channels(saved, shape[1])
    return None


def shared_channels(filters: Tensor, channels: int) -> Tensor:
    """Filters (O, C, *S) for another number of image channels (O, `channels`, *S), with the same sum over the channels.

    Of more channels, those that repeat a filter share it; of fewer, each adds up the filters that fall to it.
    """
    old = filters.shape[1]
    if channels < old:
        summed = filters.new_zeros(filters.shape[0], channels, *filters.shape[2:])
        return summed.index_add_(1, torch.arange(old) % channels, filters)
    origin = torch.arange(channels) % old
    count = torch.bincount(origin, minlength=old).to(filters.dtype)[origin]
    return filters[:, origin] / count.view(1, -1, *(1,) * (filters.ndim - 2))


def _require(here: State, saved: State, values: State) -> None:
    whole = min(sum(value.numel() for value in side.values()) for side in (here, saved))
    fits = sum(value.numel() for value in values.values())
    if not fits or fits < _LEAST * whole:
        summary = "nothing of it fits" if not fits else f"only {len(values)} small tensors of it fit"
        raise ValueError(f"{summary} this network: the file has {first_few(saved)}; the network has {first_few(here)}")


def _sides(value: Tensor) -> str:
    return str(list(value.shape))


_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(network: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile` and data parallelism, whichever is outside."""
    while True:
        inside = network.module if isinstance(network, _PARALLEL) else getattr(network, "_orig_mod", network)
        if inside is network:
            return network
        network = inside
