"""Splitting an optimizer's state dict into the values of each parameter, and merging them back."""

from __future__ import annotations

from typing import Any

Place = tuple[int, str]
"""Number of a parameter, counted through all groups, and name of one of its values."""

_LOOKAHEAD, _SLOW = "lookahead", "lookahead.slow"


def taken_apart(state: dict[str, Any]) -> dict[Place, Any]:
    """The values of every parameter in `optimizer.state_dict()`, Lookahead's slow weights among them, by number."""
    flat: dict[Place, Any] = {
        (number, name): value for number, values in state["state"].items() for name, value in values.items()
    }
    for number, value in state.get(_LOOKAHEAD, {}).get("slow", {}).items():
        flat[number, _SLOW] = value
    return dict(sorted(flat.items(), key=lambda item: item[0][0]))


def put_together(state: dict[str, Any], values: dict[Place, Any]) -> dict[str, Any]:
    """A state dict with these values of parameters and everything else from `state`, which is not changed."""
    inner: dict[int, dict[str, Any]] = {}
    slow: dict[int, Any] = {}
    for (number, name), value in sorted(values.items(), key=lambda item: item[0][0]):
        if name == _SLOW:
            slow[number] = value
        else:
            inner.setdefault(number, {})[name] = value
    merged = {**state, "state": inner}
    if _LOOKAHEAD in state:
        merged[_LOOKAHEAD] = {**state[_LOOKAHEAD], "slow": slow}
    return merged
