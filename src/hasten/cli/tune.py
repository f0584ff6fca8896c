"""`hasten tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.source import OVERRIDES_HELP, SOURCE_HELP, config_from
from hasten.observe.rundir import CHECKPOINTS, ENV_JSON, METRICS_JSONL, PLAN_JSON, RUN_YAML

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig


def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Or the folder of a run.")],
    out: Annotated[Path, typer.Option(help="Where tuned.yaml, tune.json and tune.html go; new or empty.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="a.b=value", help=OVERRIDES_HELP)] = None,
    seconds: Annotated[float, typer.Option(help="Time for everything; longer tries more.")] = 300.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier search on this machine has measured.")
    ] = False,
    larger_batch: Annotated[
        bool,
        typer.Option("--larger-batch", help="Take another batch size too if it gains much; it changes the training."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not say what is being compared.")] = False,
) -> None:
    """Search for the fastest settings of a run on this machine; write them as a run's YAML."""
    config = _config(source, overrides or [])

    from hasten.study.tune import tune as search

    found = search(
        config,
        out,
        seconds=seconds,
        fresh=fresh,
        larger_batch=larger_batch,
        echo=None if quiet else lambda text: typer.echo(text, err=True),
    )
    typer.echo("\n".join(found.lines()))
    typer.echo(f"report     {found.out / 'tune.html'}")
    typer.echo(f"train      hasten train {found.out / 'tuned.yaml'} --out FOLDER")


def _config(source: str, overrides: list[str]) -> RunConfig:
    """As for other verbs; the folder of a run stands for its run.yaml."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        if (folder / RUN_YAML).is_file():
            return config_from(str(folder / RUN_YAML), overrides)
        left = [name for name in (PLAN_JSON, ENV_JSON, METRICS_JSONL, CHECKPOINTS) if (folder / name).exists()]
        if left:
            raise ValueError(
                f"{folder}: looks like a run's folder ({', '.join(left)}), but {RUN_YAML} is missing; "
                "name the YAML or the data set itself"
            )
    return config_from(source, overrides)
