"""`hasten recipe list`, `show`, `data` and `phantom`: published tasks and their data; `hasten phantom`: made-up."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import Verbs, echo

_METRICS = {"dice": "Dice", "iou": "IoU", "froc": "FROC", "auc": "AUC"}

app = typer.Typer(
    cls=Verbs, help="Published tasks with their settings: SOURCE of any other command.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe (`hasten recipe list`), or the YAML file of one.")]


@app.command("list")
def list_() -> None:
    """List the recipes."""
    from hasten.recipes.load import load_recipe, recipe_names

    for recipe in map(load_recipe, recipe_names()):
        target = "" if recipe.target is None else f"{_METRICS[recipe.metric]} {recipe.target:g}"
        echo(f"{recipe.name:12}  {target:9}  {recipe.title}")


@app.command()
def show(name: Name) -> None:
    """Say what a recipe is: its data, target and settings, and where each number is from."""
    from hasten.cases.public import data_home, described, public_set
    from hasten.recipes.load import load_recipe, recipe_path

    recipe = load_recipe(name)
    echo(f"recipe     {recipe.name}: {recipe.title}")
    if recipe.data:
        public = public_set(recipe.data)
        folder = data_home() / public.folder
        echo(f"data       {described(public)}")
        echo(f"           {folder} ({'there' if folder.is_dir() else f'not there; `hasten recipe data {name}`'})")
        echo(f"cite       {public.citation}")
    else:
        echo("data       none that is public; phantoms, or yours with data.source=FOLDER")
    echo(f"train      hasten train {name} --out FOLDER")
    for option, twin in (("", recipe.twin), (" --reduced", recipe.reduced)):
        if twin is not None:
            echo(f"phantoms   hasten recipe phantom {name}{option} --to DIR ({twin.cases} {twin.make})")
    path = recipe_path(name)
    echo(f"settings   {path}")
    echo("")
    echo(path.read_text(encoding="utf-8").rstrip())


@app.command()
def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A recipe, or a public data set.")],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make its folder in; default $HASTEN_DATA.")
    ] = None,
) -> None:
    """Download the public data of a recipe: print its content and licence, verify, unpack and keep it."""
    from hasten.cases.public import described, download, public_set
    from hasten.recipes.load import load_recipe, recipe_names

    data_name = name
    if name in recipe_names() or Path(name).suffix:
        recipe = load_recipe(name)
        if not recipe.data:
            raise ValueError(
                f"{name}: has no public data; `hasten recipe phantom {name} --to DIR` writes phantoms of it"
            )
        data_name = recipe.data
    public = public_set(data_name)
    echo(f"fetching   {described(public)}")
    echo(f"cite       {public.citation}")
    echo(f"data       {download(public, to)}")


@app.command("phantom")
def twin(
    name: Name,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the data set, new or empty.")],
    reduced: Annotated[
        bool, typer.Option("--reduced", help="Smaller ones, which two cores can be trained on.")
    ] = False,
    cases: Annotated[int | None, typer.Option(min=1, help="How many cases; default as the recipe says.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cases made at once; default the usable cores.")] = None,
) -> None:
    """Write phantoms that stand in for a recipe's data, and a YAML to train on them."""
    from hasten.observe.cores import usable_cores
    from hasten.recipes.load import load_recipe
    from hasten.recipes.run import twin_of, write_twin

    recipe = load_recipe(name)
    spec = twin_of(recipe, reduced=reduced, cases=cases)
    yaml_path = write_twin(recipe, spec, to, num_threads=threads or usable_cores())
    echo(f"{spec.cases} case{'' if spec.cases == 1 else 's'} in {to}")
    echo(f"train      hasten train {shlex.quote(str(yaml_path))} --out FOLDER")


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
