"""The operation protocol: a frozen description, numbers drawn per sample, and tensor arithmetic that uses them.

Two kinds. A `ValueOp` changes values where they are (intensity, noise, colour); a `MapOp` (`hasten.augment.maps`) says
where each output voxel lies in its input, so that neighbouring ones become one interpolation. Whether a sample is
changed at all is decided outside, from `prob`; an operation only says how.

Rules for `draw`, `apply` and `map`, tested: no value is read on the host (no `.item()`, no `if` on a tensor, no
boolean indexing, no `nonzero`), shapes are static, samples do not touch each other, inputs are not written to, and all
randomness comes from `key` by way of `hasten.sample.random`, whose streams 1, 2, 3 ... an operation numbers for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Protocol, get_type_hints, runtime_checkable

from torch import Tensor

from hasten.config.schema import Triple
from hasten.sample.random import salted_keys, uniform

Drawn = dict[str, Tensor]
"""The numbers of B samples by name, each (B, ...) on the device of the batch."""

_MASK = 0xFFFFFFFF
_STEP = 0x3C6EF372
_USE = 0x7E
"""Stream of the draw that decides whether a sample is changed."""


@runtime_checkable
class ValueOp(Protocol):
    """Changes values: `apply` keeps the shape (B, C, *S), S being (D, H, W) or (H, W), and float32."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The entries of the batch that are changed, by the same drawn numbers."""

    @property
    def prob(self) -> float: ...

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        """Numbers for B samples. key: (B, 2) int64 words; shape: (C, *S) of the first entry that is changed."""

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        """The changed image, of the same shape and type. image: (B, C, *S) float32. drawn: as `draw` returns it."""


def op_keys(key: Tensor, first: int, count: int) -> Tensor:
    """(count, B, 2) separate words for each operation, so that adding one to the end of a chain changes no other.

    key: (B, 2) words of the samples; first: position in the chain of the first of `count` operations.
    """
    return salted_keys(key, (first * _STEP + 0x51ED270B) & _MASK, _STEP, count)


def op_key(key: Tensor, position: int) -> Tensor:
    """(B, 2) words of one operation."""
    return op_keys(key, position, 1)[0]


def chances(key: Tensor) -> Tensor:
    """(...) float32 in [0, 1): an operation is used where it lies below its probability. key: (..., 2)."""
    return uniform(key.view(-1, 2), _USE, 1).view(key.shape[:-1])


def spread(value: Tensor, image: Tensor) -> Tensor:
    """(B,) or (B, C) numbers as (B, 1 or C, 1, ...) beside an image (B, C, *S)."""
    return value.reshape(*value.shape, *[1] * (image.ndim - value.ndim))


def space(image: Tensor) -> tuple[int, ...]:
    """The axes of an image (B, C, *S) that are space, for reductions."""
    return tuple(range(2, image.ndim))


def check_prob(name: str, field: str, value: float) -> None:
    """Raises ValueError naming the transform and the argument unless 0 <= value <= 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: {field}={value}; a probability lies between 0 and 1")


def check_range(
    name: str,
    field: str,
    value: tuple[float, float],
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> None:
    """Raises ValueError naming the transform and the argument unless low <= value[0] <= value[1] <= high.

    above: a number that value[0] lies above.
    """
    first, last = value
    if first > last:
        raise ValueError(f"{name}: {field}={value}; the range is the wrong way round: write ({last}, {first})")
    if low is not None and first < low:
        raise ValueError(f"{name}: {field}={value}; it starts below {low}")
    if above is not None and first <= above:
        raise ValueError(f"{name}: {field}={value}; it must start above {above}")
    if high is not None and last > high:
        raise ValueError(f"{name}: {field}={value}; it ends above {high}")


def _check_ranges(name: str, field: str, value: tuple[tuple[float, float], ...]) -> None:
    for each in value:
        check_range(name, field, each)


def _check_size(name: str, field: str, value: Triple) -> None:
    if len(value) != 3 or min(value) < 1:
        raise ValueError(f"{name}: {field}={value}; write (D, H, W), each at least 1 (2-D: D = 1)")


def _check_count(name: str, field: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: {field}={value}; at least 1 is needed")


Prob = Annotated[float, check_prob]
Range = Annotated[tuple[float, float], check_range]
"""(low, high) of what is drawn evenly."""
Ranges = Annotated[tuple[tuple[float, float], ...], _check_ranges]
RangeFrom0 = Annotated[tuple[float, float], partial(check_range, low=0.0)]
RangeAbove0 = Annotated[tuple[float, float], partial(check_range, above=0.0)]
Size = Annotated[Triple, _check_size]
Count = Annotated[int, _check_count]


@cache
def _checks(kind: Any) -> tuple[tuple[str, Callable[[str, str, Any], None]], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((field, check) for field, hint in hints.items() for check in getattr(hint, "__metadata__", ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Arguments that are checked by their types, then together."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for field, check in _checks(kind):
            check(type(self).__name__, field, getattr(self, field))
        self.check()

    def check(self) -> None:
        """Raises ValueError for arguments that can't be, beyond what their types say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation(Checked):
    """What Hasten's own operations share. Their `draw` and `apply` are as in `ValueOp`."""

    keys: tuple[str, ...] = ("image",)
    prob: Prob = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Deterministic(Operation):
    """An operation that draws no numbers."""

    prob: Prob = 1.0

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        """No numbers, as in `ValueOp`. key: (B, 2); shape: (C, *S)."""
        return {}
