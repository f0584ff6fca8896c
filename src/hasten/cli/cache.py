"""`hasten cache ls|prune`, and `hasten warm`, which puts compiled kernels there."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import OptionalSource, Overrides, config_from
from hasten.cli.terminal import Verbs, echo
from hasten.config.size import size_text

app = typer.Typer(cls=Verbs, help="Look at and clear the prepared cases that Hasten keeps.", no_args_is_help=True)

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
    total = size_text(sum(entry.num_bytes for entry in entries))
    echo(f"{len(entries)} entr{'y' if len(entries) == 1 else 'ies'}, {total}, in {place}")
    for entry in entries:
        days = max(0.0, time.time() - entry.used) / 86400
        echo(f"{size_text(entry.num_bytes):>9}  {days:5.1f} days  {entry.kind:10}  {entry.path.name}")


@app.command()
def prune(
    folder: Folder = None,
    unused_days: Annotated[
        float | None, typer.Option(min=0, help="Remove what was not used for this many days.")
    ] = None,
    max_gib: Annotated[
        float | None, typer.Option(min=0, help="Keep at most this much, the most recently used.")
    ] = None,
) -> None:
    """Remove the shards and remote copies that the options name, and what killed builds left."""
    from hasten.cache.entries import prune as pruned

    limit = None if max_gib is None or max_gib == math.inf else int(max_gib * 2**30)
    removed = pruned(_folder(folder), unused_days=unused_days, max_bytes=limit)
    for entry in removed:
        echo(f"removed  {size_text(entry.num_bytes):>9}  {entry.path.name}")
    echo(f"{size_text(sum(entry.num_bytes for entry in removed))} freed")


def warm(source: OptionalSource = None, overrides: Overrides = None) -> None:
    """Compile into the cache folder what runs would compile at their start: for images, and before the first job.

    With SOURCE, that run is made ready for its first step: its cases are prepared, its kernels for this CPU or GPU
    compiled, and what it measures is kept. Without, the C++ functions are compiled for every width of vectors, so that
    an image starts on any processor of its architecture. Kernels in $HASTEN_KERNELS are not compiled again.
    """
    config = None if source is None else config_from(source, overrides or [])
    from hasten.training.warm import warm as compiled

    for name in [str(path) for path in compiled(config)] or ["none on Windows, where torch's operations run"]:
        echo(f"kernels    {name}")
