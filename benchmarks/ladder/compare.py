"""The ladder on a recipe or a data set: `python -m benchmarks.ladder.compare RECIPE|DATASET --out DIR`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.source import Overrides, config_from
from hasten.cli.terminal import duration_from, echo

if TYPE_CHECKING:
    from benchmarks.ladder.task import Task
    from hasten.recipes.load import Recipe, TwinSettings


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def compare(
    source: Annotated[
        str, typer.Argument(metavar="RECIPE|DATASET", help="A recipe's name, a data set, or a run's YAML.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for ladder.json and ladder.svg.")],
    overrides: Overrides = None,
    phantom: Annotated[bool, typer.Option("--phantom", help="On phantoms of the recipe's size.")] = False,
    reduced: Annotated[bool, typer.Option("--reduced", help="On the recipe's small phantoms.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each rung.")] = 3,
    rungs: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="These rungs only; several times, or with commas.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also nnunet; as --rungs.")] = None,
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

    Every run is a process of its own from an empty cache, and its clock has everything in it.
    """
    from rich.console import Console

    from benchmarks.ladder.climb import Attempt, check_installed, climb
    from benchmarks.ladder.rungs import rungs_named
    from benchmarks.ladder.show import Ladder, terminal_table, verdict, write

    chosen = rungs_named(_names(rungs or []), _names(peer or []))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: is a file; name a folder")
    work = work or out / "work"
    wanted = [*(overrides or []), f"train.device={device}", *([f"train.target={target}"] if target is not None else [])]
    check_installed(chosen)
    task = _task(source, wanted, work, phantom=phantom or reduced, reduced=reduced)
    tries = [Attempt(rung=rung, target=task.target, cap=cap, seeds=seeds, device=device) for rung in chosen]
    ladder = Ladder(task=task, rungs=chosen, results=climb(task, tries, work, tell=echo), level=task.target)
    Console().print(terminal_table(ladder))
    echo(verdict(ladder))
    for path in write(out, ladder):
        echo(f"wrote      {path}")


def _names(words: Sequence[str]) -> list[str]:
    return [name for text in words for name in text.split(",") if name]


def _task(source: str, overrides: list[str], work: Path, *, phantom: bool, reduced: bool) -> Task:
    """The task of a recipe, on its data or phantoms, or of any data set."""
    from benchmarks.ladder.task import peer_of, task_of
    from hasten.recipes.load import recipe_at
    from hasten.recipes.run import run_of, twin_of

    recipe = recipe_at(source)
    if recipe is None and phantom:
        raise ValueError(f"{source}: only a recipe has phantoms; leave out --{'reduced' if reduced else 'phantom'}")
    if recipe is None:
        return task_of(config_from(source, overrides))
    if not phantom:
        return task_of(config_from(source, overrides), peer_of(recipe.peer), name=recipe.name)
    twin = twin_of(recipe, reduced=reduced)
    data = written_twin(recipe, twin, work)
    peer = peer_of(twin.peer or recipe.peer)
    name = f"{recipe.name}, {'reduced ' if reduced else ''}phantoms"
    return task_of(run_of(recipe, [f"data.source={data}", *overrides], twin=twin), peer, name=name)


def written_twin(recipe: Recipe, twin: TwinSettings, work: Path) -> Path:
    """The phantoms in a folder of `work` that is named by their settings; written only if they are not there."""
    from hasten.cache.key import digest
    from hasten.observe.cores import usable_cores
    from hasten.recipes.run import write_twin

    work.mkdir(parents=True, exist_ok=True)
    settings = [twin.make, twin.cases, twin.shape, twin.spacing, twin.seed, twin.options]
    folder = work.absolute() / f"phantoms_{recipe.name}_{digest(settings)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work, prefix=".phantoms") as part:
            write_twin(recipe, twin, Path(part) / "data", num_threads=usable_cores())
            (Path(part) / "data").rename(folder)
    return folder


if __name__ == "__main__":
    try:
        app()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
