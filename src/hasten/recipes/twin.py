"""Writes a recipe's phantoms as a data set, with a run's YAML next to it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hasten.observe.rundir import empty_folder
from hasten.recipes.recipe import Recipe, TwinSettings

TRAIN_YAML = "train.yaml"
"""The YAML that `hasten train` takes to train on the phantoms: the recipe's settings merged with the phantoms'."""


def twin_of(recipe: Recipe, *, reduced: bool = False, cases: int | None = None) -> TwinSettings:
    """The settings of a recipe's phantoms; `cases` replaces their number. Raises ValueError if it has none."""
    settings = recipe.twin_of(reduced=reduced)
    if settings is None:
        remedy = "leave out --reduced" if reduced else "add --reduced, or fetch its data"
        raise ValueError(f"{recipe.name}: has no {'reduced' if reduced else 'full-size'} phantoms; {remedy}")
    return settings if cases is None else dataclasses.replace(settings, cases=cases)


def write_twin(recipe: Recipe, twin: TwinSettings, to: Path, *, num_threads: int = 2) -> Path:
    """Write the phantoms into `to`, new or empty, and the YAML to train on them, which is returned.

    The same settings give the same files. Raises ValueError if `to` is in use or the phantoms' settings are invalid.
    """
    empty_folder(to, "--to")
    last = recipe.last_of(twin)
    if twin.cases <= last:
        raise ValueError(f"{recipe.name}: {twin.cases} phantoms are too few, as the last {last} are for validation")
    _write(recipe, twin, to, num_threads)
    path = to / TRAIN_YAML
    heading = f"# Phantoms of the recipe {recipe.name}: {recipe.title}\n"
    path.write_text(heading + _settings(recipe, twin, to), encoding="utf-8")
    return path


def _settings(recipe: Recipe, twin: TwinSettings, to: Path) -> str:
    """The run on phantoms in `to` as YAML, its source relative so that the folder may be moved."""
    overrides = [f"data.source={to.absolute()}"]
    from hasten.config.load import dump_run
    from hasten.recipes.run import detection_of, run_of

    config: Any = (detection_of if recipe.kind == "detection" else run_of)(recipe, overrides, twin=twin)
    return dump_run(dataclasses.replace(config, data=dataclasses.replace(config.data, source=".")))


def _write(recipe: Recipe, twin: TwinSettings, to: Path, num_threads: int) -> None:
    options: dict[str, Any] = {
        "seed": twin.seed,
        "num_cases": twin.cases,
        "num_threads": num_threads,
        "spacing": twin.spacing,
        **({} if twin.shape is None else {"shape": twin.shape}),
        **twin.options,
    }
    write: Callable[..., Path]
    match twin.make:
        case "ct":
            from hasten.phantoms.organs import write_phantoms as write
        case "tumours":
            from hasten.phantoms.tumours import write_tumour_phantoms as write
        case "hippocampi":
            from hasten.phantoms.hippocampus import write_hippocampi as write
        case "spheres":
            from hasten.phantoms.spheres import write_spheres as write
        case "cells":
            from hasten.phantoms.cells import write_cells as write
        case "slides":
            from hasten.phantoms.slides import write_phantom_slides as write
    known = inspect.signature(write).parameters
    unknown = sorted(set(twin.options) - set(known))
    if unknown:
        raise ValueError(f"{recipe.name}: twin.options.{unknown[0]}: {twin.make} phantoms have no such option")
    write(to, **{name: value for name, value in options.items() if name in known})
