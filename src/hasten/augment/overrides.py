"""`augment.override`: fields of a chain's operations changed by name."""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.augment.chain import Fixed, PerSample
from hasten.config.augment import override_items

_TARGET = re.compile(r"(\w+)(?:\[(\d+)\])?\.(\w+)")


def with_overrides(ops: Sequence[Any], override: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operations with these fields changed: "Gamma.prob" of each Gamma, "Gamma[0].prob" of the first.

    Raises ValueError for an unknown operation or field, with the closest names and all existing ones, and for an
    invalid value.
    """
    result = list(ops)
    for target, value in override_items(override).items():
        match = _TARGET.fullmatch(target)
        assert match is not None  # by the check of the settings
        name, number, field = match.groups()
        places = [place for place, op in enumerate(result) if _name(op) == name]
        if not places:
            there = _near(name, filter(None, map(_name, ops)), "the chain")
            raise ValueError(f"augment.override: {target}: no such operation{there}")
        if number is not None and int(number) >= len(places):
            raise ValueError(
                f"augment.override: {target}: the chain has {len(places)} {name}, counted from 0; write "
                f"{name}[{len(places) - 1}].{field}, or {name}.{field} for all of them"
            )
        for place in places if number is None else [places[int(number)]]:
            result[place] = _with_field(result[place], field, value, target)
    return tuple(result)


def _with_field(op: Any, field: str, value: Any, target: str) -> Any:
    fields = [each.name for each in dataclasses.fields(op) if each.init] if dataclasses.is_dataclass(op) else []
    if field not in fields:
        raise ValueError(f"augment.override: {target}: no such field{_near(field, fields, _name(op))}")
    try:
        return dataclasses.replace(op, **{field: _value_for(op, field, value)})
    except (ValueError, TypeError) as error:
        raise ValueError(f"augment.override: {target}: {error}") from None


def _value_for(op: Any, field: str, value: Any) -> Any:
    """The value converted to the field's type. Raises ValueError if it is invalid."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(typing.get_type_hints(type(op))[field])
    except (NameError, PydanticUserError):  # of a user's operation, whose types may be anything
        return value
    try:
        validated = adapter.validate_python(value)
    except ValidationError as errors:
        rule = errors.errors()[0]["msg"].removeprefix("Input should be ")
        raise ValueError(f"must be {rule} (given {value})") from None
    if isinstance(value, bool) and not isinstance(validated, bool):
        raise ValueError(f"must be a number (given {value})")
    return validated


def _name(op: Any) -> str:
    """ "" of a step that has no settings of its own."""
    return "" if isinstance(op, Fixed | PerSample) else type(op).__name__


def _near(name: str, names: typing.Iterable[str], owner: str) -> str:
    there = list(dict.fromkeys(names))
    near = difflib.get_close_matches(name, there, n=2)
    return (f"; did you mean {' or '.join(near)}?" if near else ";") + f" {owner} has {', '.join(there) or 'none'}"
