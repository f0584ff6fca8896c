"""Builds the DetectionConfig of a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hasten.cases.public import absent, data_home, public_set
from hasten.pathology.config import DetectionConfig, load
from hasten.recipes.load import overlaid
from hasten.recipes.recipe import Recipe, TwinSettings


def detection_of(
    recipe: Recipe, overrides: Sequence[str] = (), *, twin: TwinSettings | None = None, base: Path | None = None
) -> DetectionConfig:
    """The run that a recipe of kind detection describes, with `section.field=value` over it; with `twin` for those.

    Slides are where `data.source` says (in the recipe relative to `base`), else in the folder of public sets. Raises
    ValueError: mistakes in the settings, slides that are absent (with what to fetch and under which licence).
    """
    assert recipe.kind == "detection"
    tree = recipe.run if twin is None else overlaid(recipe.run, twin.run)
    source = (tree.get("data") or {}).get("source")
    if source:
        tree = overlaid(tree, {"data": {"source": str((base or Path()) / Path(source).expanduser())}})
    config = load(tree, overrides)
    if config.data.source or not recipe.data:
        return config
    public = public_set(recipe.data)
    folder = data_home().absolute() / public.folder
    if not folder.exists():
        raise absent(public, folder)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=str(folder)))
