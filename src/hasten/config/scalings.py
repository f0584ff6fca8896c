"""Intensity scaling by channel: `prepare.intensity` and `prepare.window` are of all channels, or one for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from hasten.config.patterns import as_lists
from hasten.config.schema import Intensity, PrepareConfig, Range

Windows = tuple[Range | None, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one channel's values are scaled."""

    kind: Intensity
    window: Range | None = None
    """Range of the kind `window`; None for other kinds."""


def scalings(prepare: PrepareConfig, num_channels: int) -> tuple[Scaling, ...]:
    """What is done to each channel. `prepare.intensity` is set.

    Raises ValueError for lists that do not fit, and for a window that is missing or empty.
    """
    mistakes = [*window_mistakes(prepare), *length_mistakes(prepare, num_channels)]
    if mistakes:
        raise ValueError("; ".join(mistakes))
    windows = listed_windows(prepare) or (cast("Range | None", prepare.window),) * num_channels
    kinds = zip(kinds_of(prepare, num_channels), windows, strict=True)
    result = tuple(Scaling(kind, window if kind == "window" else None) for kind, window in kinds)
    for channel, scaling in enumerate(result):
        if scaling == Scaling("window"):
            of = f" of channel {channel}" if num_channels > 1 else ""
            raise ValueError(f"prepare.window: prepare.intensity=window{of} needs a range (low, high), not None")
    return result


def kinds_of(prepare: PrepareConfig, num_channels: int) -> tuple[Intensity, ...]:
    """The scaling of each channel, as many as are listed if they are. `prepare.intensity` is set."""
    kinds = prepare.intensity
    assert kinds is not None
    return kinds if isinstance(kinds, tuple) else (kinds,) * num_channels


def listed_windows(prepare: PrepareConfig) -> Windows | None:
    """`prepare.window` where it is a list with one for each channel."""
    window = prepare.window
    is_pair = window is None or (len(window) == 2 and all(isinstance(each, int | float) for each in window))
    return None if is_pair else cast("Windows", window)


def window_mistakes(prepare: PrepareConfig) -> Iterator[str]:
    """What is wrong with the windows whatever the channels are, each as "prepare.window: what is wrong"."""
    listed = listed_windows(prepare)
    for window in listed if listed is not None else (cast("Range | None", prepare.window),):
        if window is not None and not -math.inf < window[0] < window[1] < math.inf:
            yield f"prepare.window: must be [low, high] with low < high (given {window})"
    if listed is None or prepare.intensity is None:
        return
    kinds = kinds_of(prepare, len(listed))
    if [kind == "window" for kind in kinds] != [window is not None for window in listed]:
        yield (
            f"prepare.window: {as_lists(listed)} does not fit prepare.intensity={as_lists(kinds)}; give [low, high] "
            "for each channel that is windowed, and null for the others"
        )


def length_mistakes(prepare: PrepareConfig, num_channels: int, names: Sequence[str] = ()) -> Iterator[str]:
    """Reports lists without one value per channel. names: of the channels."""
    kinds = prepare.intensity if isinstance(prepare.intensity, tuple) else None
    for field, values in (("intensity", kinds), ("window", listed_windows(prepare))):
        if values is not None and len(values) != num_channels:
            plural, listed_names = "s" * (num_channels != 1), f" ({', '.join(names)})" if names else ""
            yield (
                f"prepare.{field}: has {len(values)} value{'s' * (len(values) != 1)}, but the images have "
                f"{num_channels} channel{plural}{listed_names}; give one for each, or one that holds for all"
            )


def canonical(prepare: PrepareConfig) -> PrepareConfig:
    """Simplify settings by channel: equal intensities become one, and a window that all windowed channels share too.

    Windows that are all null become what a plan writes for a window that is not used.
    """
    intensity, window, listed = prepare.intensity, prepare.window, listed_windows(prepare)
    if isinstance(intensity, tuple) and len(set(intensity)) == 1:
        intensity = intensity[0]
    if listed is not None:
        pairs = {pair for pair in listed if pair is not None}
        window = listed if len(pairs) > 1 else next(iter(pairs), (0.0, 1.0))
    return replace(prepare, intensity=intensity, window=window)
