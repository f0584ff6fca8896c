"""Markdown of the reference pages from the code itself: every verb, every setting; and a notebook as a page."""

from __future__ import annotations

import functools
import inspect
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hasten.cli.main import app
from hasten.config.describe import setting_sections
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
        rows.append(f"| `{_cell(name)}` | {value} | {_cell(parameter.help or '')} |")
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows, ""])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if parameter.is_flag or default is None or default == () or callable(default) or "UNSET" in repr(default).upper():
        return ""
    text = " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)
    return f"`{text}`" if text else ""


def _prose(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "").replace("\f", ""))


def settings_markdown() -> str:
    """A table for every section of a run's settings: name, type, default, meaning."""
    lines = []
    for section in setting_sections():
        lines += [f"\n## {section.name}\n", section.about, "\n| setting | values | default | |\n|---|---|---|---|"]
        lines += [
            f"| `{each.name}` | {_cell(each.values)} | `{_cell(each.default)}` | {_cell(each.meaning)} |"
            for each in section.settings
        ]
    return "\n".join(lines)


def networks_markdown() -> str:
    """A table of the built-in networks and the settings that not all of them have."""
    rows = ["| |" + "|".join(f" `{name}` " for name in SETTINGS) + "|", "|---" * (len(SETTINGS) + 1) + "|"]
    for name, built_in in NETWORKS.items():
        cells = [(built_in.act if each == "act" else "yes") * (each in built_in.settings) for each in SETTINGS]
        rows.append(f"| `{_cell(name)}` | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n\n`act` names the network's usual activation.\n"


def setting_names() -> set[str]:
    """Every setting as section.field."""
    return {each.name for section in setting_sections() for each in section.settings}


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
