"""`hasten plan`."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten.cli.source import Overrides, Source, config_from
from hasten.cli.terminal import columns, echo
from hasten.observe.progress import wrapped

_VALUE = 32
"""Maximum characters of a value that has its reason in the same row."""
_NARROW = 100
"""Columns below which a reason has lines of its own, under its setting and value."""


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
    if out.exists() and not overwrite:  # a plan is there to be edited
        raise ValueError(f"--out {out}: exists; add --overwrite to replace it, or choose another --out")

    from hasten.observe.rundir import write_json
    from hasten.training.choose.budget import make_plan

    decided = make_plan(config)
    write_json(out, decided)
    if decided.get("decisions"):
        echo(_table(decided["decisions"]) + "\n")
    if decided.get("augmentation"):
        from hasten.augment.explain import ExplainedTransform, rows_table

        table = rows_table([ExplainedTransform(**row) for row in decided["augmentation"]])
        echo(wrapped(table, columns()) + "\n")
    if decided.get("network"):
        size, flops = decided["network"]["parameters"], decided["network"]["forward_flops"]
        counted = f", {flops / 1e9:.3g} GFLOP in a forward pass of one patch" if flops is not None else ""
        echo(f"network    {size:,} parameters{counted}")
    echo(f"plan       {out}")
    echo(f"train      hasten train {shlex.quote(str(source))} --out FOLDER")


def _table(decisions: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each decision: setting, value, reason. A long value takes a line of its own."""
    width = columns()
    rows = [(name, json.dumps(each["value"]), str(each["reason"])) for name, each in decisions.items()]
    first = max(len(name) for name, _, _ in rows)
    second = max((len(value) for _, value, _ in rows if len(value) <= _VALUE), default=len("value"))
    if width < _NARROW:
        indent = " " * 4
        return "\n".join(
            f"{name}  {value}\n{textwrap.fill(reason, width - 1, initial_indent=indent, subsequent_indent=indent)}"
            for name, value, reason in rows
        )
    lines = [f"{'setting':{first}}  {'value':{second}}  why"]
    for name, value, reason in rows:
        start = f"{name:{first}}  {value:{second}}"
        if len(value) > second:
            lines.append(start)
            start = " " * (first + 2 + second)
        indent = " " * (first + second + 4)
        lines.append(textwrap.fill(reason, width, initial_indent=f"{start}  ", subsequent_indent=indent))
    return "\n".join(lines)
