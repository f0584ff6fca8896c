"""`hasten settings`."""

from __future__ import annotations

import shutil
import textwrap
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from hasten.cli.terminal import echo
from hasten.observe.progress import wrapped


def settings(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name, a name with *, or a word of what the setting does."),
    ] = None,
) -> None:
    """List the settings of a run with their values, their default and what they do."""
    from hasten.config.describe import setting_sections

    every = {setting.name: setting for section in setting_sections() for setting in section.settings}
    wanted = (pattern or "").lower().partition("=")[0]
    named = [each for name, each in every.items() if wanted in name or fnmatchcase(name, wanted)]
    found = named or [each for each in every.values() if wanted in f"{each.values} {each.meaning}".lower()]
    if not found:
        raise ValueError(f"{pattern}: is in no setting's name or description; `hasten settings` lists all")
    width, lines = shutil.get_terminal_size().columns, list[str]()
    for each in found:
        text = f"{each.values}; default {each.default}\n{each.meaning}".replace("`", "")
        lines += [each.name, textwrap.indent(wrapped(text, width - 4), "    ")]
    echo("\n".join(lines))
