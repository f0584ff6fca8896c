"""`hasten bench guide` and `hasten bench ladder`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.source import OVERRIDES_HELP, config_from
from hasten.cli.terminal import echo

if TYPE_CHECKING:
    from hasten.recipes.recipe import Recipe, TwinSettings
    from hasten.study.ladder.task import Task

app = typer.Typer(help="Measure on this machine what others have published.", no_args_is_help=True)


@app.command()
def guide(
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this claim only; may be given several times.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=5, help="Bound on the whole of it.")] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Folder for guide.json and guide.html.")] = None,
) -> None:
    """Say which advice of the published tuning guides holds on this machine."""
    from rich.console import Console

    from hasten.observe.env import environment
    from hasten.study.guide.claims import CLAIMS
    from hasten.study.guide.run import chosen, run_guide
    from hasten.study.guide.show import made, summary, terminal_table, write

    claims = chosen(CLAIMS, only or [])
    if out is not None:
        made(out)
    facts = environment()
    console = Console()
    with Console(stderr=True).status("") as status:
        results = run_guide(claims, seconds=seconds, tell=lambda guidance: status.update(f"{guidance.name} ..."))
    console.print(terminal_table(results))
    console.print(summary(results))
    if out is not None:
        for path in write(out, results, budget_s=seconds, environment=facts):
            echo(f"wrote      {path}")


@app.command()
def ladder(
    source: Annotated[
        str, typer.Argument(metavar="RECIPE|DATASET", help="A recipe's name, a data set, or a run's YAML.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for ladder.json, ladder.svg and ladder.html.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="a.b=value", help=OVERRIDES_HELP)] = None,
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
    cap: Annotated[float, typer.Option(min=1, help="Seconds after which a run is stopped.")] = 900.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N, for every rung.")] = "auto",
    work: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps each run's result; default: OUT/work. A kept run isn't repeated."),
    ] = None,
) -> None:
    """Train one task the regular way, MONAI's fast way and Hasten's, one advance at a time, each to the target.

    Every run is a process of its own from an empty cache, and its clock has everything in it.
    """
    from rich.console import Console

    from hasten.study.ladder.climb import Attempt, check_installed, climb
    from hasten.study.ladder.rungs import rungs_named
    from hasten.study.ladder.show import Ladder, terminal_table, verdict, write

    chosen = rungs_named(_names(rungs), _names(peer))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")
    kept = work or out / "work"
    wanted = [*(overrides or []), f"train.device={device}", *([f"train.target={target}"] if target is not None else [])]
    check_installed(chosen)
    task = _task(source, wanted, kept, phantom=phantom or reduced, reduced=reduced)
    tries = [Attempt(rung=rung, target=task.target, cap=cap, seeds=seeds, device=device) for rung in chosen]
    found = Ladder(task=task, rungs=chosen, results=climb(task, tries, kept, tell=echo), level=task.target)
    Console().print(terminal_table(found))
    echo(verdict(found))
    for path in write(out, found):
        echo(f"wrote      {path}")


def _names(given: Sequence[str] | None) -> list[str]:
    return [name for text in given or () for name in text.split(",") if name]


def _task(source: str, overrides: list[str], work: Path, *, phantom: bool, reduced: bool) -> Task:
    """The task of a recipe, on its data or phantoms, or of any data set."""
    from hasten.recipes.load import recipe_at
    from hasten.recipes.run import run_of
    from hasten.recipes.twin import twin_of
    from hasten.study.ladder.task import task_of

    recipe = recipe_at(source)
    if recipe is None and phantom:
        raise ValueError(f"{source}: only a recipe has phantoms; leave out --{'reduced' if reduced else 'phantom'}")
    if recipe is None:
        return task_of(config_from(source, overrides))
    if not phantom:
        return task_of(config_from(source, overrides), recipe.peer, name=recipe.name)
    twin = twin_of(recipe, reduced=reduced)
    data = written_twin(recipe, twin, work)
    peer = twin.peer or recipe.peer
    name = f"{recipe.name}, {'reduced ' if reduced else ''}phantoms"
    return task_of(run_of(recipe, [f"data.source={data}", *overrides], twin=twin), peer, name=name)


def written_twin(recipe: Recipe, twin: TwinSettings, work: Path) -> Path:
    """The phantoms in a folder of `work` that is named by their settings; written only if they are not there."""
    import tempfile

    from hasten.cache.key import digest
    from hasten.observe.env import usable_cores
    from hasten.recipes.twin import write_twin

    work.mkdir(parents=True, exist_ok=True)
    made = [twin.make, twin.cases, twin.shape, twin.spacing, twin.seed, twin.options]
    folder = work.absolute() / f"phantoms_{recipe.name}_{digest(made)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work, prefix=".phantoms") as part:
            write_twin(recipe, twin, Path(part) / "data", num_threads=usable_cores())
            (Path(part) / "data").rename(folder)
    return folder
