"""Writes a recipe's phantoms as a data set, with a run's YAML next to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hasten.observe.rundir import empty_folder
from hasten.recipes.recipe import Recipe, TwinSettings

TRAIN_YAML = "train.yaml"
"""The YAML that `hasten train` takes to train on the phantoms: the recipe's settings merged with the phantoms'."""
_OPTIONS = {"cells": ("radius", "filled", "value"), "slides": ("mpp", "num_levels", "compression")}
"""Phantoms with options beyond the common settings."""


def twin_of(recipe: Recipe, *, reduced: bool = False, cases: int | None = None) -> TwinSettings:
    """The settings of a recipe's phantoms; `cases` replaces their number. Raises ValueError if it has none."""
    settings = recipe.twin_of(reduced=reduced)
    if settings is None:
        other = recipe.twin_of(reduced=not reduced)
        if other is None:
            raise ValueError(f"{recipe.name}: has no phantoms; it needs its data")
        remedy = "leave out --reduced" if reduced else "add --reduced"
        raise ValueError(f"{recipe.name}: has {'no reduced' if reduced else 'only reduced'} phantoms; {remedy}")
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
    known = _OPTIONS.get(twin.make, ())
    unknown = sorted(set(twin.options) - set(known))
    if unknown:
        valid = f"valid here: {', '.join(known)}" if known else "they have none"
        raise ValueError(f"{recipe.name}: twin.options.{unknown[0]}: no such option of these phantoms; {valid}")
    common: dict[str, Any] = {"seed": twin.seed, **twin.options}
    cases: dict[str, Any] = {"num_cases": twin.cases, "num_threads": num_threads}
    volume: dict[str, Any] = {} if twin.shape is None else {"shape": twin.shape}
    plane: Any = None if twin.shape is None else twin.shape[1:]
    match twin.make:
        case "ct":
            from hasten.phantoms.organs import write_phantoms

            write_phantoms(to, **common, **cases, **volume, spacing=twin.spacing)
        case "tumours":
            from hasten.phantoms.tumours import write_tumour_phantoms

            write_tumour_phantoms(to, **common, **cases, **volume, spacing=twin.spacing)
        case "hippocampi":
            from hasten.phantoms.hippocampus import write_hippocampi

            write_hippocampi(to, **common, **cases, **volume)
        case "spheres":
            from hasten.phantoms.spheres import write_spheres

            write_spheres(to, **common, num_cases=twin.cases, **volume)
        case "cells":
            from hasten.phantoms.cells import write_cells

            write_cells(to, **common, **cases, **({"shape": plane} if plane else {}))
        case "slides":
            from hasten.cases.slide.phantom import write_phantom_slides

            size = {"size": plane} if plane else {}
            write_phantom_slides(to, **common, num_slides=twin.cases, num_threads=num_threads, **size)
