"""`hasten weights show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import run_from
from hasten.cli.terminal import Verbs, echo

app = typer.Typer(cls=Verbs, help="Look at weights that a run can start from.", no_args_is_help=True)


@app.callback()
def _weights() -> None:
    pass


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A run's folder, or a .pt, .pth or .safetensors file.")],
    run: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Say how they would fit this run: its folder, its YAML, or a data set."),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="Parts of a name that make a row.")] = 2,
    full: Annotated[bool, typer.Option("--all", help="List every tensor with its shape.")] = False,
) -> None:
    """Print what a file of weights holds, module by module, and with --run how it would fit that run."""
    from hasten.training.initial import by_module, counted_once, fit_file, read_weights

    saved = read_weights(path)
    once = counted_once(saved.weights)
    total = sum(value.numel() for value in once.values())
    where = f" under {saved.key}" if saved.key else ""
    repeated = len(saved.weights) - len(once)
    again = f"; {repeated} more names of the same tensors are left out" if repeated else ""
    echo(f"{saved.path}: {len(once)} tensors{where}, {total:,} numbers{again}")
    if full:
        for name, value in saved.weights.items():
            echo(f"  {name:<60} {list(value.shape)!s:<24} {str(value.dtype).removeprefix('torch.')}")
    else:
        for name, count, numbers, kinds in by_module(once, depth):
            echo(f"  {name:<40} {count:>5} tensors {numbers:>14,} numbers  {kinds}")
    if run is not None:
        from hasten.training.plan import plan_run

        echo(fit_file(path, plan_run(run_from(run, []))).table())
