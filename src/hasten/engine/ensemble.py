"""Several networks as one: which may be joined, and the mean of their probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hasten.cases.place import same_source
from hasten.config.load import from_dict
from hasten.config.resume import RUN_RULES, flat, rule_of, text_of
from hasten.config.schema import Triple
from hasten.engine.canvas import score_room
from hasten.engine.infer import Inference, infer_scores
from hasten.engine.weights import model_file, read_model
from hasten.observe.folds import finished_folds, is_cross_validation

_OF_A_FOLD = ("data.split.fold", "train.precision")
"""What folds may differ in: their number, and what was measured on the machine."""
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
        found = [Member(model_file(each), read_model(each)) for each in (finished_folds(path) if folds else [path])]
        require_alike(found, "*" if folds else "prepare.*")
        members += found
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


class Probabilities:
    """A sink that adds up the probabilities of networks that are applied in turn; only their sum is in memory."""

    def __init__(self, shape: Triple, device: torch.device, *, overlapping: bool) -> None:
        self._shape, self._device, self._overlapping = shape, device, overlapping
        self._sum: Tensor | None = None

    def room(self, slot: tuple[slice, slice, slice], like: Tensor) -> Tensor | None:
        return None

    def take(self, slot: tuple[slice, slice, slice], sums: Tensor, weights: Callable[[], Tensor]) -> None:
        scores = sums.float() / weights().to(sums.device)
        found = scores.sigmoid() if self._overlapping else scores.softmax(0)
        if self._sum is None:
            self._sum = score_room((len(found), *self._shape), self._device, torch.float32).zero_()
        self._sum[(slice(None), *slot)] += found.to(self._sum.device)

    def result(self) -> Tensor:
        """(K, D, H, W) float32."""
        assert self._sum is not None
        return self._sum


def ensemble_labels(networks: Sequence[tuple[nn.Module, Inference]], volume: Tensor) -> Tensor:
    """(D, H, W) uint8 class index of the highest mean probability; where classes overlap (K, D, H, W) bool.

    networks: each with how it is applied; all with the same outputs. volume: (C, D, H, W). Probabilities are the
    softmax of a network's scores, of overlapping classes their sigmoid; a class holds where its mean is above a half.
    """
    how = networks[0][1]
    depth, height, width = volume.shape[1:]
    total = Probabilities((depth, height, width), how.device, overlapping=how.overlapping)
    for network, each in networks:
        infer_scores(network, volume, each, total)
    found = total.result()
    return found > len(networks) / 2 if how.overlapping else found.max(0)[1].to(torch.uint8)
