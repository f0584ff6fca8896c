"""Phantoms of a recipe, few and small."""

from __future__ import annotations

import dataclasses

from hasten.recipes.load import Recipe, TwinSettings
from hasten.recipes.run import twin_of

SHAPES = {
    "ct": (8, 16, 16),
    "tumours": (16, 16, 16),
    "hippocampi": (16, 20, 16),
    "cells": (1, 48, 64),
    "spheres": (61, 61, 61),
}


def small_twin(recipe: Recipe, *, reduced: bool = False, cases: int = 11) -> TwinSettings:
    twin = twin_of(recipe, reduced=reduced, cases=cases)
    options = {**twin.options, "radius": 8} if twin.make == "cells" else twin.options
    return dataclasses.replace(twin, shape=SHAPES[twin.make], options=options)
