"""`hasten predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT", help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="Folder for the label maps.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace label maps that exist already.")] = False,
) -> None:
    """Segment images with a trained run's best weights; label maps lie on the images' own voxels."""
    from hasten.engine.predict import predict as segment

    written = segment(run, inputs, out, overwrite=overwrite)
    typer.echo(f"{len(written)} label map{'' if len(written) == 1 else 's'} in {out}")
