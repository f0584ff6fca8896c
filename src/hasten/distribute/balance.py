"""Load balancing: cases of uneven cost are distributed so that no rank waits long for another. Pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import nsmallest

Parts = tuple[tuple[int, ...], ...]
"""Positions of each part's cases, rising."""

_SWAPS = 1000


def partition(costs: Sequence[float], parts: int) -> Parts:
    """Assign cases, costliest first, each to the part with the smallest load so far (longest processing time first).

    The largest load is at most 4/3 - 1/(3 parts) times the smallest that is possible (Graham 1969). Ties go to the
    lower position and the lower part. With fewer cases than parts some are empty.
    """
    assert parts >= 1
    return _sorted(_fill(costs, parts, _costliest(costs), row=1)[0])


def deal(costs: Sequence[float], parts: int, order: Sequence[int] | None = None) -> Parts:
    """`partition` with part sizes that differ by one case at most, so that all cases are drawn equally often.

    Cases are assigned in rows of one case per part, the costliest of a row to the part with the smallest load so far.
    Then pairs of cases are swapped while that reduces the gap between the heaviest and the lightest part. order: the
    positions in the order in which rows are formed; None is the costliest first.
    """
    members, loads = _fill(costs, parts, _costliest(costs) if order is None else order, row=parts)
    _swap(costs, members, loads)
    return _sorted(members)


def _fill(costs: Sequence[float], parts: int, order: Sequence[int], *, row: int) -> tuple[list[list[int]], list[float]]:
    """Members and load of each part. `row` cases at a time, the costliest to the part with the smallest load so far."""
    members: list[list[int]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for first in range(0, len(order), row):
        cases = sorted(order[first : first + row], key=lambda case: -costs[case])
        lightest = nsmallest(len(cases), range(parts), key=loads.__getitem__)
        for case, part in zip(cases, lightest, strict=True):
            members[part].append(case)
            loads[part] += costs[case]
    return members, loads


def _sorted(members: list[list[int]]) -> Parts:
    return tuple(tuple(sorted(each)) for each in members)


def _costliest(costs: Sequence[float]) -> list[int]:
    return sorted(range(len(costs)), key=lambda case: -costs[case])


def _swap(costs: Sequence[float], parts: list[list[int]], loads: list[float]) -> None:
    """Swap pairs of cases in place. Moving half the gap would equalise two parts; the nearest swap is chosen."""
    for _ in range(_SWAPS):
        heavy, light = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[heavy] - loads[light]
        if gap <= 1e-3 * max(loads):
            return
        ranked = sorted((costs[case], case) for case in parts[light])
        pairs = []
        for one in parts[heavy]:
            at = bisect_left(ranked, (costs[one] - gap / 2, -1))
            pairs += [(costs[one] - cost, one, other) for cost, other in ranked[max(0, at - 1) : at + 1]]
        better = [pair for pair in pairs if 0.001 * gap < pair[0] < 0.999 * gap]
        if not better:
            return
        moved, one, other = min(better, key=lambda pair: (abs(pair[0] - gap / 2), pair))
        parts[heavy][parts[heavy].index(one)], parts[light][parts[light].index(other)] = other, one
        loads[heavy] -= moved
        loads[light] += moved
