"""`hasten bench guide` and `hasten bench ladder`, whose code is in the repository's `benchmarks` folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import hasten
from hasten.cli.source import Overrides
from hasten.cli.terminal import Verbs, duration_from

CHECKOUT = Path(hasten.__file__).resolve().parents[2]
"""The repository, where the package is installed from one with `pip install -e`."""

app = typer.Typer(cls=Verbs, help="Measure on this machine what others have published.", no_args_is_help=True)


@app.command()
def guide(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this claim only; may be given several times.")
    ] = None,
    seconds: Annotated[float, typer.Option(parser=duration_from(5), help="Bound on the whole of it.")] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Folder for guide.json and guide.html.")] = None,
) -> None:
    """Say which advice of the published tuning guides holds on this machine. Needs Hasten's repository."""
    benchmark("guide").measure(only or [], seconds=seconds, out=out)


@app.command()
def ladder(
    source: Annotated[
        str, typer.Argument(metavar="RECIPE|DATASET", help="A recipe's name, a data set, or a run's YAML.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for ladder.json, ladder.svg and ladder.html.")],
    overrides: Overrides = None,
    phantom: Annotated[bool, typer.Option("--phantom", help="On phantoms of the recipe's size.")] = False,
    reduced: Annotated[bool, typer.Option("--reduced", help="On the recipe's small phantoms.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each rung.")] = 3,
    rungs: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="These rungs only; several times, or with commas.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also nnunet, torchio or lightning; as --rungs.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="Stop at this value of the metric; default: train.target.")
    ] = None,
    cap: Annotated[float, typer.Option(parser=duration_from(1), help="Time after which a run is stopped.")] = 900.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N, for every rung.")] = "auto",
    work: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps each run's result; default: OUT/work. A kept run isn't repeated."),
    ] = None,
) -> None:
    """Train one task the regular way, MONAI's fast way and Hasten's, one advance at a time, each to the target.

    Every run is a process of its own from an empty cache, and its clock has everything in it. Needs Hasten's
    repository.
    """
    benchmark("ladder").compare(
        source, out, overrides or [], phantom=phantom or reduced, reduced=reduced, seeds=seeds, rungs=rungs or [],
        peers=peer or [], target=target, cap=cap, device=device, work=work or out / "work",
    )  # fmt: skip


def benchmark(name: str) -> ModuleType:
    """`benchmarks.NAME.command` of the checkout. Raises ValueError where the package was installed without one."""
    if not (CHECKOUT / "benchmarks" / name / "command.py").is_file():
        raise ValueError(
            f"hasten bench {name}: the comparisons with other libraries are not in the installed package; clone "
            f"Hasten's repository, run `pip install -e '.[peers]'` in it, and then this command again"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return importlib.import_module(f"benchmarks.{name}.command")
