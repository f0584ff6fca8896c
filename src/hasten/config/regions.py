"""Overlapping classes ("regions"): which sets of them make sense, and how one label map is painted from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Regions = Mapping[str, tuple[int, ...]]
"""Name to label values, in the order in which a label map is painted: later ones over earlier ones."""


def region_mistakes(regions: Regions, values: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with these regions whatever the labels of a data set are, one sentence each, with its remedy.

    values: label values to paint with, for those regions whose own does not follow from the others.
    """
    for name, members in regions.items():
        if not name.strip():
            yield "a region has an empty name; name it"
        if not members:
            yield f'"{name}" is empty; name the label values that belong to it'
        if any(value <= 0 for value in members):
            yield f'"{name}" holds {min(members)}; only values above the background, 0, can belong to a region'
        if len(set(members)) < len(members):
            yield f'"{name}" names a label value twice: {list(members)}; name each once'
    hidden = [name for name, members in regions.items() if members and not _visible_values(regions, name)]
    if hidden:
        yield (
            f'"{hidden[0]}" would be hidden by the regions after it, which hold all its values; name larger regions '
            "first, as in {whole: [1, 2], core: [2]}"
        )
        return
    for name, value in values.items():
        if name not in regions:
            yield f'data.region_values names "{name}", which is no region; the regions are {", ".join(regions)}'
        elif value not in regions[name]:
            yield f'data.region_values paints "{name}" with {value}; use one of its own values {list(regions[name])}'
    repeated = [value for value in values.values() if list(values.values()).count(value) > 1]
    if repeated:
        yield f"data.region_values paints two regions with {repeated[0]}; give each its own value"
    for name in regions:
        visible = _visible_values(regions, name)
        if name not in values and len(visible) > 1:
            yield (
                f'"{name}" could be painted into a label map with any of {visible}, which no later region holds; '
                f'choose one with data.region_values={{"{name}": {visible[0]}}}'
            )


def painted_values(regions: Regions, values: Mapping[str, int]) -> dict[str, int]:
    """Label value that each region is painted with. The regions are without mistakes."""
    return {name: values[name] if name in values else _visible_values(regions, name)[0] for name in regions}


def _visible_values(regions: Regions, name: str) -> list[int]:
    """The values of a region that no later one holds."""
    names = list(regions)
    later = {value for other in names[names.index(name) + 1 :] for value in regions[other]}
    return [value for value in regions[name] if value not in later]
