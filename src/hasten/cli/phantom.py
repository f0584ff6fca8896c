"""`hasten phantom`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import echo


def phantom(
    out: Annotated[Path, typer.Option(help="Folder for the data set, new or empty.")],
    cases: Annotated[int, typer.Option(min=1, help="How many cases.")] = 16,
    shape: Annotated[tuple[int, int, int], typer.Option(metavar="D H W", help="Size in voxels.")] = (48, 64, 64),
    spacing: Annotated[tuple[float, float, float], typer.Option(metavar="D H W", help="Voxel spacing in mm.")] = (
        1.0,
        1.0,
        1.0,
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the shapes and the noise.")] = 0,
) -> None:
    """Write a made-up labelled data set, to try Hasten without data of your own."""
    if min(shape) < 1:
        raise ValueError(f"--shape {' '.join(map(str, shape))}: must be three sizes of 1 or more")
    if not all(0 < mm < float("inf") for mm in spacing):
        raise ValueError(f"--spacing {' '.join(map(str, spacing))}: must be three positive numbers of mm")

    from hasten.observe.rundir import empty_folder
    from hasten.phantoms.organs import write_phantoms

    write_phantoms(empty_folder(out), num_cases=cases, shape=shape, spacing=spacing, seed=seed)
    echo(f"{cases} case{'' if cases == 1 else 's'} in {out}")
    echo(f"train      hasten train {shlex.quote(str(out))} --out FOLDER")
