"""Input and result types of lowering, and argument parsing that the families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.augment.crop import CropOp
from hasten.config.schema import Triple

_LINEAR = ("linear", "bilinear", "trilinear")
_NEAREST = ("nearest", "nearest-exact")
_FLOATS = ("float32", "float64", "None")


class NotLowered(Exception):
    """The transform is not lowered; the message says why."""


class Undecided(NotLowered):
    """The transform depends on the size of the items, which is known when data are bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The context of a transform in its chain."""

    keys: tuple[str, ...]
    """Keys of the batch."""
    label_keys: tuple[str, ...]
    named: tuple[str, ...] = ()
    """The label keys that the user named."""
    created: tuple[str, ...] = ()
    """Entries of the batch that the chain itself creates."""
    dims: int = 3
    size: Triple | None = None
    """(D, H, W) of the input, None until data are bound."""
    bytes_keys: tuple[str, ...] = ()
    """Keys that items hold as uint8."""
    fixed: tuple[Any, ...] = ()
    """The transforms that are cached."""
    following: Any = None
    """The transform after this one."""
    opening: bool = True
    """Whether its input is cached cases, so that it may be their crop."""
    patches: bool = False
    """Whether its input is patches, not whole cases."""
    cucim: bool = False
    """Whether cuCIM can run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowered:
    """Operations in place of a transform; without a crop and operations, there is nothing to do."""

    ops: tuple[Any, ...] = ()
    crop: CropOp | None = None
    note: str = ""


def name_of(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


def names_of(transforms: Iterable[Any]) -> str:
    return ", ".join(map(name_of, transforms))


def build(transform: Any, kind: Callable[..., Any], **fields: Any) -> Any:
    """An operation. Raises ValueError naming the user's transform besides the operation and the argument."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{name_of(transform)} can't be lowered: {error}") from None


def single(transform: Any, kind: Callable[..., Any], note: str = "", **fields: Any) -> Lowered:
    """One operation on the keys of the transform."""
    return Lowered(ops=(build(transform, kind, keys=keys_of(transform), **fields),), note=note)


def keys_of(transform: Any) -> tuple[str, ...]:
    return tuple(getattr(transform, "keys", ()))


def pair(value: Any, field: str) -> tuple[float, float]:
    """(low, high) of numbers. Raises NotLowered for anything else."""
    try:
        low, high = (float(each) for each in value)
    except (TypeError, ValueError):
        raise NotLowered(f"{field}={value} is not a pair of numbers") from None
    return low, high


def modes_of(transform: Any, context: Context) -> tuple[str, ...]:
    """Interpolation mode of each key. Raises NotLowered for unsupported ones, ValueError for an interpolated label."""
    names = []
    for key, value in zip(keys_of(transform), transform.mode, strict=True):
        mode = str(value)
        if key in context.label_keys and mode not in _NEAREST:
            if key in context.named:
                raise ValueError(
                    f'{name_of(transform)}: mode: the label key "{key}" is given "{mode}", which makes values between '
                    'classes; give it "nearest", or leave it out of label_keys'
                )
            raise NotLowered(
                f'reads "{key}", which looks like a label, with mode={mode}; "nearest" would keep its classes'
            )
        if mode not in _LINEAR + _NEAREST:
            raise NotLowered(f'reads "{key}" with mode={mode}; Hasten reads linearly or the nearest voxel')
        names.append("nearest" if mode in _NEAREST else "bilinear")
    return tuple(names)


def padding_of(transform: Any, names: dict[str, str]) -> str:
    """The one padding of all keys, by Hasten's name. Raises NotLowered."""
    modes = {str(each) for each in transform.padding_mode}
    if len(modes) > 1:
        raise NotLowered(f"has padding modes {sorted(modes)} for its keys; Hasten has one for all of them")
    only = modes.pop()
    if only not in names:
        raise NotLowered(f"has padding_mode={only}; Hasten has those of {', '.join(sorted(names))}")
    return names[only]


def check_float(transform: Any, dtypes: Sequence[Any]) -> None:
    """Raises NotLowered for another type than float32 of results (float64 is rounded to it)."""
    for dtype in dtypes:
        name = str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")
        if name not in _FLOATS:
            raise NotLowered(f"computes in dtype={name}; Hasten computes in float32")


def triple_of(transform: Any, field: str, value: Any, context: Context) -> Triple:
    """(D, H, W) of a size as MONAI writes it.

    Raises NotLowered where an entry depends on the case, ValueError where there are too few or too many.
    """
    sides = [value] if isinstance(value, int) or value is None else list(value)
    if len(sides) == 1:
        sides = sides * context.dims
    if len(sides) != context.dims:
        raise ValueError(f"{name_of(transform)}: {field}={value} has {len(sides)} axes, the items have {context.dims}")
    if any(side is None or side <= 0 for side in sides):
        if context.size is None:
            reason = f"has {field}={value}, which takes sides from each case; give numbers above 0"
            raise NotLowered(reason) if context.opening else Undecided(reason)
        whole = context.size[3 - context.dims :]
        sides = [extent if side is None or side <= 0 else side for side, extent in zip(sides, whole, strict=True)]
    full = [1] * (3 - context.dims) + [int(side or 0) for side in sides]
    return full[0], full[1], full[2]


def check_all_keys(transform: Any, context: Context, reason: str) -> None:
    """Raises NotLowered where the size of some keys of the batch would change and that of others would not."""
    rest = [key for key in context.keys if key not in keys_of(transform)]
    if rest:
        raise NotLowered(f'{reason} and leaves "{rest[0]}" as it is; Hasten keeps the keys of a batch at one size')
