"""`hasten plan` and `hasten settings`: what a run would be, and what can be set of it."""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.source import Overrides, Source, config_from
from hasten.cli.terminal import echo
from hasten.observe.progress import wrapped


def plan(
    source: Source,
    out: Annotated[Path, typer.Option(help="The JSON file to write.")] = Path("plan.json"),
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a plan that exists already.")] = False,
) -> None:
    """Write what a training run would decide from the data set, and why, without training."""
    config = config_from(source, overrides or [])
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: the folder {out.parent} does not exist; make it or choose another --out")
    if out.exists() and not overwrite:
        raise ValueError(f"--out {out}: exists; add --overwrite to replace it, or choose another --out")

    from hasten.augment.explain import ExplainedTransform, rows_table
    from hasten.observe.rundir import write_json
    from hasten.training.choose.budget import make_plan

    decided = make_plan(config)
    write_json(out, decided)
    width = shutil.get_terminal_size((120, 24)).columns  # the former for a file or a pipe
    echo(_table(decided["decisions"], width) + "\n")
    table = rows_table([ExplainedTransform(**row) for row in decided["augmentation"]])
    echo(wrapped(table, width) + "\n")
    size, flops = decided["network"]["parameters"], decided["network"]["forward_flops"]
    counted = f", {flops / 1e9:.3g} GFLOP in a forward pass of one patch" if flops is not None else ""
    echo(f"network    {size:,} parameters{counted}")
    echo(f"plan       {out}")
    echo(f"train      hasten train {shlex.join([str(source), *(overrides or [])])} --out FOLDER")


def _table(decisions: Mapping[str, Mapping[str, Any]], width: int) -> str:
    """A row for each decision: setting, value, reason."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("setting", "value", "why", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.columns[0].no_wrap = True
    for name, each in decisions.items():
        table.add_row(name, Text(json.dumps(each["value"])), Text(str(each["reason"])))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def settings(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, a name with *, or a word of what the setting does."),
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
