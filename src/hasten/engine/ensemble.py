"""Ensembles: which networks may be combined, and the mean of their probabilities."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hasten.cases.place import same_source
from hasten.config.load import from_dict
from hasten.config.resume import RUN_RULES, flat, rule_of, text_of
from hasten.engine.infer import Inference
from hasten.engine.scores import first_output
from hasten.engine.weights import model_file, read_model
from hasten.observe.folds import finished_folds, is_cross_validation

_OF_A_FOLD = ("data.split.fold", "train.precision")
"""Settings in which folds may differ: the fold's number, and what was measured on the machine."""
_CONTENT = ("channels", "labels", "regions", "region_values", "spatial_dims")


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One of the trained networks that predict together."""

    where: Path
    """Its best.pt."""
    content: dict[str, Any]
    """Of that file, as `read_model` gives it."""


def read_members(run: str | Path | Sequence[str | Path]) -> list[Member]:
    """The networks of a run directory or best.pt, of all finished folds of a cross-validation, or of several of these.

    Raises ValueError where one can't be read, where folds differ in their settings or data, and where other runs differ
    in what networks must share to be averaged: channels, labels, regions and the preparation of images.
    """
    paths = [Path(path) for path in ([run] if isinstance(run, (str, Path)) else run)]
    if not paths:
        raise ValueError("predict: no run is named; name a run's folder, its best.pt or a cross-validation")
    members: list[Member] = []
    for path in paths:
        folds = is_cross_validation(path)
        group = [Member(model_file(each), read_model(each)) for each in (finished_folds(path) if folds else [path])]
        require_alike(group, "*" if folds else "prepare.*")
        members += group
    require_alike(members, "prepare.*")
    return members


def require_alike(members: Sequence[Member], settings: str) -> None:
    """Raise one ValueError that lists what differs from the first. settings: pattern of those that are compared."""
    differences = [text for member in members[1:] for text in _differences(members[0], member, settings)]
    if differences:
        lines = "\n  ".join(differences)
        raise ValueError(
            f"{members[0].where}: cannot be averaged with networks of other settings or data; train them alike, or "
            f"predict with one of them\n  {lines}"
        )


def _differences(first: Member, other: Member, settings: str) -> Iterable[str]:
    for name in _CONTENT:
        was, now = first.content.get(name, {}), other.content.get(name, {})
        if was != now:
            yield f"{other.where}: {name} {text_of(now)} instead of {text_of(was)}"
    one, two = (flat(from_dict(member.content["config"], where=str(member.where))) for member in (first, other))
    for name, was in one.items():
        if not fnmatchcase(name, settings) or name in _OF_A_FOLD or rule_of(name, RUN_RULES).kind == "machine":
            continue
        if was != two[name] and not (name == "data.source" and same_source(was, two[name])):
            yield f"{other.where}: {name}={text_of(two[name])} instead of {text_of(was)}"


class Ensemble(nn.Module):
    """Networks as one, whose scores are the mean of their probabilities.

    These are the soft-max; with overlapping classes the sigmoid less one half, so that a class holds above 0.
    """

    def __init__(self, networks: Sequence[nn.Module], *, overlapping: bool) -> None:
        super().__init__()
        self.networks, self.overlapping = nn.ModuleList(networks), overlapping

    def forward(self, image: Tensor) -> Tensor:
        """(B, K, *S) float32. image: (B, C, *S)."""
        total: Tensor | None = None
        for network in self.networks:
            scores = first_output(network(image), image.ndim).float()
            share = scores.sigmoid() if self.overlapping else scores.softmax(1)
            total = share if total is None else total.add_(share)
        assert total is not None
        mean = total / len(self.networks)
        return mean - 0.5 if self.overlapping else mean


def joined(inferences: Sequence[Inference], where: Path) -> Inference:
    """How networks are applied as one: as the first, whose windows all of them must take.

    where: the first one's file, for errors. Raises ValueError for networks that ask for other multiples.
    """
    depth, height, width = (math.lcm(*sides) for sides in zip(*(each.divisor for each in inferences), strict=True))
    unit, first = (depth, height, width), inferences[0]
    if any(side % by for side, by in zip(first.patch, unit, strict=True)):
        raise ValueError(
            f"{where}: its windows of {list(first.patch)} voxels are no multiple of {list(unit)}, as the other "
            "networks ask; train them with the same sample.patch, or predict with one of them"
        )
    return dataclasses.replace(first, divisor=unit, probabilities=True)
