"""A chain of operations and the stages it runs in: neighbouring maps become one, the first together with the crop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hasten.augment.crop import CropOp
from hasten.augment.maps import MapOp
from hasten.config.schema import Triple

Batch = dict[str, Tensor]
"""(B, C, D, H, W), in 2-D (B, C, H, W), by key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A deterministic step after random ones, on a whole batch."""

    name: str
    apply: Callable[[Batch], Batch]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PerSample:
    """Transforms that are not lowered: they run on the host, sample by sample, as MONAI would run them."""

    transforms: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainOp:
    """An operation and its place in the chain, which its random numbers are keyed by."""

    position: int
    op: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRead:
    """How one key goes through a `Warp`."""

    ops: tuple[ChainOp, ...]
    mode: str
    padding_mode: str
    is_label: bool
    """Whether the key is kept in its stored type; all else becomes float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Warp:
    """Maps that are read with one interpolation."""

    readings: Mapping[str, KeyRead]
    size: Triple
    """(D, H, W) of the input, in voxels."""
    out: Triple


Stage = Warp | ChainOp


def is_per_sample(stage: Stage) -> bool:
    """Whether it runs on the host, sample by sample."""
    return isinstance(stage, ChainOp) and isinstance(stage.op, PerSample)


def stage_name(stage: Stage) -> str:
    """What a profile calls a stage: `Spatial+Mirror`, `GaussianNoise`, `crop`."""
    if isinstance(stage, Warp):
        names = {each.position: type(each.op).__name__ for reading in stage.readings.values() for each in reading.ops}
        return "+".join(dict.fromkeys(names[position] for position in sorted(names))) or "crop"
    return str(getattr(stage.op, "name", None) or type(stage.op).__name__)


def groups_of(warp: Warp) -> list[tuple[str, ...]]:
    """The keys of a Warp that are read at the same places, together."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for key, reading in warp.readings.items():
        groups.setdefault(tuple(each.position for each in reading.ops), []).append(key)
    return [tuple(keys) for keys in groups.values()]


def stages_of(chain: Chain, size: Triple) -> tuple[Stage, ...]:
    """Stages in order; the first one is a Warp, of no operation where the chain does not begin with a map.

    size: (D, H, W) of what enters: the patch. Raises ValueError where an operation does not fit the size or the keys.
    """
    stages: list[Stage] = []
    group: list[ChainOp] = []

    def close(entering: Triple) -> Triple:
        stages.append(_warp(group, chain, entering))
        group.clear()
        return stages[-1].out  # type: ignore[union-attr]

    for position, op in enumerate(chain.ops):
        _check_keys(op, chain.keys)
        if getattr(op, "prob", 1.0) == 0:
            continue
        if isinstance(op, MapOp):
            # Zeros that a small case is padded with are part of the patch: what repeats its border must see them.
            padded = not stages and chain.crop is not None and chain.crop.pad and op.padding_mode not in ("", "zeros")
            if padded or (group and not _agree(group, op)):
                size = close(size)
            group.append(ChainOp(position=position, op=op))
            continue
        if group or not stages:
            size = close(size)
        stages.append(ChainOp(position=position, op=op))
    if group or not stages:
        close(size)
    return tuple(stages)


def _check_keys(op: Any, keys: Sequence[str]) -> None:
    absent = [key for key in getattr(op, "keys", ()) if key not in keys]
    if absent:
        raise ValueError(f'{type(op).__name__}: keys: "{absent[0]}" is not among the keys of the batch {sorted(keys)}')


def _how(op: MapOp, key: str) -> tuple[str, str] | None:
    """Mode and padding of a key, None where the operation leaves both open or does not touch it."""
    if key not in op.keys or not op.mode:
        return None
    modes = op.mode if len(op.mode) > 1 else op.mode * len(op.keys)
    if len(modes) != len(op.keys):
        raise ValueError(f"{type(op).__name__}: mode={op.mode} does not match keys={op.keys}; one mode a key is needed")
    mode = modes[op.keys.index(key)]
    if mode not in ("bilinear", "nearest", "majority"):
        raise ValueError(f'{type(op).__name__}: mode="{mode}"; write "bilinear" or "nearest"')
    if op.padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            f'{type(op).__name__}: padding_mode="{op.padding_mode}"; write "zeros", "border" or "reflection"'
        )
    return mode, op.padding_mode


def _agree(group: Sequence[ChainOp], op: MapOp) -> bool:
    """Whether the operation can share an interpolation with those before it."""
    for key in op.keys:
        ways = {way for way in (*(_how(each.op, key) for each in group), _how(op, key)) if way is not None}
        if len(ways) > 1:
            return False
    return True


def _warp(group: Sequence[ChainOp], chain: Chain, size: Triple) -> Warp:
    keys = chain.keys
    sizes = dict.fromkeys(keys, size)
    for each in group:
        for key in each.op.keys:
            sizes[key] = each.op.out_size(sizes[key])
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"{', '.join(type(each.op).__name__ for each in group)}: the keys would end with different sizes {sizes}; "
            "resize all of them"
        )
    readings = {}
    for key in keys:
        mine = tuple(each for each in group if key in each.op.keys)
        ways = [way for way in (_how(each.op, key) for each in mine) if way is not None]
        mode, padding = ways[0] if ways else ("nearest", "zeros")
        readings[key] = KeyRead(ops=mine, mode=mode, padding_mode=padding, is_label=key in chain.label_keys)
    return Warp(readings=readings, size=size, out=next(iter(sizes.values())) if sizes else size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The chain of every sample: a crop, then operations."""

    crop: CropOp | None
    ops: tuple[Any, ...]
    keys: tuple[str, ...]
    label_keys: tuple[str, ...] = ()
    """Keys whose values are classes: of the nearest voxel, or of the majority around a place by linear weight."""

    @property
    def num_samples(self) -> int:
        """Samples in a row that come from one case."""
        return 1 if self.crop is None else self.crop.num_samples

    def __post_init__(self) -> None:
        for op in self.ops:
            for key in self.label_keys:
                if isinstance(op, MapOp) and (way := _how(op, key)) and way[0] == "bilinear":
                    raise ValueError(
                        f'{type(op).__name__}: mode: "{key}" holds classes and would be read with "{way[0]}"; '
                        'give it "nearest"'
                    )
