"""`hasten warm`."""

from __future__ import annotations

from typing import Annotated

import typer

from hasten.cli.source import SOURCE_HELP, Overrides, Quiet, config_from
from hasten.cli.terminal import echo


def warm(
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Without one, what every run on a CPU needs is compiled."),
    ] = None,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Compile into the cache folder what runs would compile at their start: for images, and before the first job.

    With SOURCE, that run is made ready for its first step: its cases are prepared, its kernels for this CPU or GPU
    compiled, and what it measures is kept. Without, the C++ functions are compiled for every width of vectors, so that
    an image starts on any processor of its architecture. Kernels in $HASTEN_KERNELS are used and not compiled again.
    """
    config = None if source is None else config_from(source, overrides or [])
    from hasten.observe.progress import Progress
    from hasten.training.warm import warm as compiled

    progress = None if quiet or config is None else Progress()
    try:
        built = compiled(config, tell=progress.tell if progress else None)
    finally:
        if progress is not None:
            progress.stop()
    echo("\n".join(f"kernels    {path}" for path in built))
