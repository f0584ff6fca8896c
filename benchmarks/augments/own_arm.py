"""Hasten's arm of `benchmarks.augment`: the preset chains, bound to the same cases in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.augments.patches import Brats, Case, Nnunet, Spleen, Tiles
from hasten.augment.colour import ColorJitter
from hasten.augment.crop import SpatialCrop
from hasten.augment.grid import Flip
from hasten.augment.make_program import CaseSource, make_program
from hasten.augment.presets import brats_chain, nnunet_chain, pathology_chain, spleen_chain
from hasten.augment.program import Program
from hasten.augment.store import store_of_items
from hasten.cache.arena import Store


def nnunet(cases: Sequence[Case], work: Nnunet) -> Program:
    crop = SpatialCrop(size=work.patch)
    chain = nnunet_chain(work.patch, crop=crop, rotate_deg=work.rotate_deg)
    return make_program(chain, CaseSource(store=stored(cases)), batch_size=work.batch)


def spleen(cases: Sequence[Case], work: Spleen) -> Program:
    chain = spleen_chain(work.patch, num_samples=work.samples)
    size = work.cases * work.samples
    return make_program(chain, CaseSource(store=stored(cases)), batch_size=size)


def brats(cases: Sequence[Case], work: Brats) -> Program:
    chain = brats_chain(work.patch)
    return make_program(chain, CaseSource(store=stored(cases)), batch_size=work.batch)


def tiles(images: Sequence[torch.Tensor], work: Tiles) -> Program:
    jitter = ColorJitter(
        keys=("image",), brightness=work.brightness, contrast=work.contrast, saturation=work.saturation, hue=work.hue
    )
    first, _, *others = pathology_chain().ops
    assert isinstance(first, ColorJitter)
    flips = [Flip(keys=("image",), prob=work.flip_prob, spatial_axis=(axis,)) for axis in (0, 1)]
    chain = replace(pathology_chain(), ops=(jitter, *flips, *others))
    rows = [(f"tile {number}", {"image": image.numpy()}) for number, image in enumerate(images)]
    store = store_of_items(rows, ["image"])
    return make_program(chain, CaseSource(store=store), batch_size=work.batch)


def stored(cases: Sequence[Case]) -> Store:
    """Images in float16, as Hasten's arena keeps them."""
    rows: list[tuple[str, dict[str, Any]]] = [
        (f"case {number}", {"image": case.image.half().numpy(), "label": case.label.numpy()})
        for number, case in enumerate(cases)
    ]
    return store_of_items(rows, ["image", "label"])


def stream(program: Program) -> Iterator[dict[str, torch.Tensor]]:
    """Batches without end."""
    return program.batches(0, 10**9)
