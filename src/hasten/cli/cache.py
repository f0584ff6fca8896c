"""`hasten cache ls|verify|prune`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import Verbs, columns, echo
from hasten.config.size import size_text

app = typer.Typer(
    cls=Verbs, help="Look at, check and clear the prepared cases that Hasten keeps.", no_args_is_help=True
)

Folder = Annotated[
    Path | None, typer.Option("--dir", help="The cache folder; default $HASTEN_CACHE, else the user's cache folder.")
]


def _folder(path: Path | None) -> Path:
    from hasten.cache.key import cache_dir
    from hasten.config.schema import CacheConfig

    folder = path if path is not None else cache_dir(CacheConfig())
    if path is not None and not path.is_dir():
        raise ValueError(f"--dir {path}: is not a folder; name that of cache.dir or $HASTEN_CACHE")
    return folder


@app.command()
def ls(folder: Folder = None) -> None:
    """List the entries and their size, most recently used first."""
    from hasten.cache.entries import list_entries

    place = _folder(folder)
    entries = list_entries(place)
    size = size_text(sum(entry.num_bytes for entry in entries))
    echo(f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}, {size}, in {place}")
    for entry in entries:
        days = max(0.0, time.time() - entry.used) / 86400
        kind = "file" if entry.kind in ("small", "remote") else "case"
        what = f"{entry.num_cases} {kind}{'s' * (entry.num_cases != 1)} {entry.source}".rstrip()
        line = f"{size_text(entry.num_bytes):>9}  {days:5.1f} days  {entry.kind:10}  {entry.path.name}"
        fits = len(line) + 2 + len(what) < columns(otherwise=1000)
        echo(f"{line}  {what}" if fits else f"{line}\n{'':11}{what}")


@app.command()
def verify(folder: Folder = None) -> None:
    """Compare every byte of every shard with its checksum; exit code 1 if one is damaged."""
    from hasten.cache.entries import verify as verified

    wrong = 0
    for entry, damage in verified(_folder(folder)):
        echo(f"{'damaged' if damage else 'sound':8} {entry.path.name}{f'  {damage}' if damage else ''}")
        wrong += bool(damage)
    if wrong:
        echo(f"{wrong} damaged: the next run that needs one rebuilds it; `hasten cache prune --damaged` removes")
        raise typer.Exit(1)


@app.command()
def prune(
    folder: Folder = None,
    unused_days: Annotated[
        float | None, typer.Option(min=0, help="Remove what was not used for this many days.")
    ] = None,
    max_gib: Annotated[
        float | None, typer.Option(min=0, help="Keep at most this much, the most recently used.")
    ] = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Remove what fails `verify`.")] = False,
) -> None:
    """Remove the shards and remote copies that the options name, and what killed builds left."""
    from hasten.cache.entries import prune as pruned

    limit = None if max_gib is None or max_gib == math.inf else int(max_gib * 2**30)
    removed = pruned(_folder(folder), unused_days=unused_days, max_bytes=limit, damaged=damaged)
    for entry in removed:
        echo(f"removed  {size_text(entry.num_bytes):>9}  {entry.path.name}")
    echo(f"{size_text(sum(entry.num_bytes for entry in removed))} freed")
