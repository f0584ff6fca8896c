"""Every setting of a run as text: its values, its default and what it does, from the classes of `schema` themselves."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

from hasten.config.schema import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting. Texts are Markdown: values stand in backticks."""

    name: str
    """`section.field`."""
    values: str
    default: str
    meaning: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SettingSection:
    """The settings of one section; those of sections within it are in their own."""

    name: str
    about: str
    settings: tuple[Setting, ...]


def setting_sections(cls: type = RunConfig, at: str = "") -> Iterator[SettingSection]:
    """Every section of a run, in the order of the classes."""
    meanings, hints = _field_docstrings(cls), typing.get_type_hints(cls)
    nested = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    if at:
        about = "" if (cls.__doc__ or "").startswith(f"{cls.__name__}(") else inspect.cleandoc(cls.__doc__ or "")
        settings = (
            Setting(
                name=f"{at}.{field.name}",
                values=_values(hints[field.name]),
                default=_default(field),
                meaning=_in_yaml(re.sub(r"\s+", " ", meanings.get(field.name, ""))),
            )
            for field in dataclasses.fields(cls)
            if field.name not in nested and field.name != "digest"  # which a run sets by itself
        )
        yield SettingSection(name=at, about=_in_yaml(about), settings=tuple(settings))
    for name, kind in nested.items():
        yield from setting_sections(typing.cast("type", kind), f"{at}.{name}" if at else name)


def _in_yaml(text: str) -> str:
    return re.sub(r"\bNone\b", "`null`", text)


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string literal behind each field, which Python itself throws away."""
    body = typing.cast("ast.ClassDef", ast.parse(inspect.getsource(cls)).body[0]).body
    results = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            results[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return results


def _default(field: dataclasses.Field[Any]) -> str:
    made = field.default if field.default is not dataclasses.MISSING else typing.cast("Any", field.default_factory)()
    if isinstance(made, str):
        return made or '""'
    return json.dumps(made, ensure_ascii=False)


def _values(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("`null`" if one is type(None) else _values(one) for one in inner)
    if origin is tuple:
        several = len(inner) == 2 and inner[1] is Ellipsis
        return f"list of {_values(inner[0])}" if several else f"[{', '.join(_values(one) for one in inner)}]"
    if origin is dict:
        return f"{_values(inner[0])} to {_values(inner[1])}"
    plain = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", Any: "value"}
    return plain.get(kind, getattr(kind, "__name__", str(kind)))
