"""Settings as dataclasses: a tree checked by pydantic against types and ranges, its errors in terms of the file."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import reprlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hasten.config.words import field_called, removed
from hasten.config.yaml_file import Key

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_T = typing.TypeVar("_T")
Sections = tuple[tuple[Key, dict[str, Any]], ...]
"""Path of each section, and its fields' types."""
_PER_CHANNEL = {
    "intensity": "'zscore', 'window' or 'none', or a list with one of them for each channel",
    "window": "[low, high], or a list with that for each channel, null where it is not windowed",
    "classes": "a list of names, as [background, nucleus], or a value for each name, as {nucleus: 255}",
}
"""Rules of fields that take several forms, most of them one value for all channels or a list with one for each."""

_ENDS = {"gt": "above {}", "ge": "{} or more", "lt": "below {}", "le": "at most {}"}
"""Rules of numbers, by the end of a range."""


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    # Imported here: it is the slowest import of the command line, and `hasten --help` needs none of it.
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def checked_as(cls: type[_T], tree: dict[Any, Any], under: Key = ()) -> tuple[_T, list[tuple[Key, str]]]:
    """A tree as a dataclass, and every mistake of type or name with its path; the defaults where there is one.

    under: path of the tree in the file, with which paths begin. All fields of `cls` must have defaults.
    """
    from pydantic import ValidationError

    hashable = typing.cast("typing.Any", cls)
    adapter, all_sections = _adapter(hashable), sections(hashable)
    mistakes = [((*under, *at), message) for at, message in _booleans(all_sections, tree, under)]
    try:
        return typing.cast("_T", adapter.validate_python(tree, extra="forbid")), mistakes
    except ValidationError as errors:
        kinds = {(*under, *at, name): kind for at, types in all_sections for name, kind in types.items()}
        for error in errors.errors(include_url=False):
            at = error["loc"]
            field = next((path for path in prefixes(at) if (*under, *path) in kinds), at)
            if field[-1] in _PER_CHANNEL:  # pydantic has mistakes for each form that the value might have
                at, error["type"], error["input"] = field, "per_channel", value_at(tree, field)
            key = (*under, *at[:-1], str(at[-1])) if error["type"] == "invalid_key" else (*under, *at)
            message = _explain(error, (*under, *at), kinds)
            if message not in dict(mistakes).values():  # pydantic names each value that a list lacks
                mistakes.append((key, message))
        return cls(), mistakes


@functools.cache
def sections(cls: type, at: Key = ()) -> Sections:
    """Every section's path and its fields' types, the root first."""
    hints = typing.get_type_hints(cls)
    types = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    below = [
        section
        for name, kind in types.items()
        for each in (kind, *typing.get_args(kind))  # the type of an optional section is a union
        if isinstance(each, type) and dataclasses.is_dataclass(each)
        for section in sections(each, (*at, name))
    ]
    return ((at, types), *below)


def value_at(tree: Any, at: Key) -> Any:
    for name in at:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _booleans(all_sections: Sections, tree: dict[Any, Any], under: Key) -> Iterator[tuple[Key, str]]:
    """Rejects true and false for a number, which pydantic would convert to 1 and 0."""
    for at, types in all_sections:
        section = value_at(tree, at)
        for name, kind in types.items():
            value = section.get(name) if isinstance(section, dict) else None
            origin: Any = typing.get_origin(kind)
            is_number = origin is not tuple and {int, float} & {kind, *typing.get_args(kind)}
            if isinstance(value, bool) and is_number:
                yield (*at, name), f"{dotted((*under, *at, name))}: must be a number (given {value})"


def _explain(error: Any, at: Key, kinds: Mapping[Key, Any]) -> str:
    """A pydantic error in terms of the file: path, rule, the value, and the nearest valid name."""
    place = dotted(at)
    value = reprlib.repr(error["input"])
    match error["type"]:
        case "unexpected_keyword_argument":
            return f"{place}: no such field (given {value}){_nearest(at, kinds)}"
        case "invalid_key":
            return f"{dotted(at[:-1]) or 'the top level'}: {at[-1]!r} is not a field's name; remove it"
        case "missing":
            return f"{dotted(at[:-1])}: has too few values (given {value})"
        case "dataclass_type":
            first = next((dotted(key) for key in kinds if key[:-1] == at), place)
            return f"{place}: is a section (given {value}); set its fields, such as {first}"
        case "literal_error" | "per_channel":
            rule = _PER_CHANNEL[str(at[-1])] if error["type"] == "per_channel" else error["ctx"]["expected"]
            similar = difflib.get_close_matches(str(error["input"]), rule.split("'")[1::2], n=1)
            return f"{place}: must be {rule} (given {value})" + (f"; did you mean {similar[0]}?" if similar else "")
        case "string_type" if not isinstance(error["input"], (dict, list)):
            return f"{place}: must be text (given {value}); put it in quotes"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            [(end, limit)] = error["ctx"].items()
            return f"{place}: must be {_ENDS[end].format(f'{limit:g}')} (given {value})"
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
    rule = error["msg"].removeprefix("Input should be ").split(", unable")[0]
    return f"{place}: must be {rule} (given {value})"


def _nearest(at: Key, names: Iterable[Key]) -> str:
    """What to do about a field of an earlier version; else names: what other tools call it, or similar ones."""
    if gone := removed(dotted(at)):
        return f"; {gone}"
    siblings = sorted(str(key[-1]) for key in names if key[:-1] == at[:-1])
    known = field_called(str(at[-1]))
    similar = [known] if known is not None and known in map(dotted, names) else []
    if not similar:
        similar = [dotted((*at[:-1], name)) for name in difflib.get_close_matches(str(at[-1]), siblings, n=3)]
    if not similar:
        similar = sorted(dotted(key) for key in names if key[-1] == at[-1])
    if similar:
        return f"; did you mean {' or '.join(similar)}?"
    return f"; valid here: {', '.join(siblings)}"


def dotted(at: Key) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in at).removeprefix(".")


def prefixes(at: Key) -> Iterator[Key]:
    return (at[:length] for length in range(len(at), 0, -1))
