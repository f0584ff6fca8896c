"""Markdown of the reference pages from the code itself: every verb, every setting; and a notebook as a page."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hasten.cli.main import app
from hasten.config import schema
from hasten.config.networks import NETWORKS, SETTINGS

Command = typing.Any
"""typer's own copy of click.Command."""


def cli_markdown() -> str:
    """A section for every verb with its arguments and options, as `hasten VERB --help` gives them."""
    return "\n".join(_command("hasten", typer.main.get_command(app), 2))


@functools.cache
def commands() -> dict[str, Command]:
    """Every verb by its words: "hasten train", "hasten scale predict"."""
    results: dict[str, Command] = {}

    def walk(name: str, command: Command) -> None:
        results[name] = command
        for child, nested in getattr(command, "commands", {}).items():
            walk(f"{name} {child}", nested)

    walk("hasten", typer.main.get_command(app))
    return results


def _command(name: str, command: Command, level: int) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if level > 2:
        usage = " ".join(command.collect_usage_pieces(command.context_class(command, info_name=name)))
        yield f"\n{'#' * (level - 1)} {name}\n\n{_prose(command.help)}\n\n```text\n{name} {usage}\n```\n"
        yield from _parameters(command)
    for child, nested in children.items():
        if not nested.hidden:
            yield from _command(f"{name} {child}", nested, level + 1)


def _parameters(command: Command) -> Iterator[str]:
    rows = []
    for parameter in sorted(command.params, key=lambda each: each.param_type_name == "option"):
        if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
            continue
        option = parameter.param_type_name == "option"
        name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if option else _metavar(parameter)
        value = _default(parameter) if option else ("required" if parameter.required else "")
        rows.append(f"| `{name}` | {value} | {_cell(parameter.help or '')} |")
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows, ""])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[]{}")


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if parameter.is_flag or default is None or default == () or callable(default) or "UNSET" in repr(default).upper():
        return ""
    text = ",".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return f"`{text}`" if text else ""


def _prose(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "").replace("\f", ""))


def settings_markdown() -> str:
    """A table for every section of a run's settings: name, type, default, meaning."""
    return "\n".join(_section(schema.RunConfig, ""))


def networks_markdown() -> str:
    """A table of the built-in networks and the settings that not all of them have."""
    rows = ["| |" + "|".join(f" `{name}` " for name in SETTINGS) + "|", "|---" * (len(SETTINGS) + 1) + "|"]
    for name, built_in in NETWORKS.items():
        cells = [(built_in.act if each == "act" else "yes") * (each in built_in.settings) for each in SETTINGS]
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n\n`act` names the network's usual activation.\n"


def setting_names() -> set[str]:
    """Every setting as section.field."""

    def walk(cls: type, prefix: str) -> Iterator[str]:
        hints = typing.get_type_hints(cls)
        for name, kind in ((field.name, hints[field.name]) for field in dataclasses.fields(cls)):
            if dataclasses.is_dataclass(kind):
                yield from walk(typing.cast("type", kind), f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    return set(walk(schema.RunConfig, ""))


def _section(cls: type, at: str) -> Iterator[str]:
    meanings = _field_docstrings(cls)
    hints = typing.get_type_hints(cls)
    nested = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    if at:
        about = "" if (cls.__doc__ or "").startswith(f"{cls.__name__}(") else _prose(cls.__doc__)
        yield f"\n## {at}\n\n{about}\n\n| setting | values | default | |\n|---|---|---|---|"
        for field in dataclasses.fields(cls):
            if field.name not in nested:
                values, default = _cell(_type(hints[field.name])), _cell(_value(field))
                meaning = _cell(meanings.get(field.name, ""))
                yield f"| `{at}.{field.name}` | {values} | `{default}` | {meaning} |"
    for name, kind in nested.items():
        yield from _section(typing.cast("type", kind), f"{at}.{name}" if at else name)


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string literal behind each field, which Python itself throws away."""
    body = typing.cast("ast.ClassDef", ast.parse(inspect.getsource(cls)).body[0]).body
    results = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            results[ast.unparse(field.target)] = inspect.cleandoc(str(text.value.value))
    return results


def _value(field: dataclasses.Field[Any]) -> str:
    made = field.default if field.default is not dataclasses.MISSING else typing.cast("Any", field.default_factory)()
    if made is None:
        return "null"
    if isinstance(made, bool):
        return str(made).lower()
    return json.dumps(made, ensure_ascii=False) if not isinstance(made, str) else made or '""'


def _type(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("`null`" if one is type(None) else _type(one) for one in inner)
    if origin is tuple:
        several = len(inner) == 2 and inner[1] is Ellipsis
        if several:
            return f"list of {_type(inner[0])}"
        return f"[{', '.join(_type(one) for one in inner)}]"
    if origin is dict:
        return f"{_type(inner[0])} to {_type(inner[1])}"
    plain = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`", Any: "value"}
    return plain.get(kind, getattr(kind, "__name__", str(kind)))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def notebook_markdown(path: Path) -> str:
    """A notebook's cells as Markdown: text as it is, code in blocks. Its first heading stays the page's title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"]).strip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
