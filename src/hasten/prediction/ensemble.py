"""Trained networks that predict, alone or together: their settings, whether these fit, and their mean."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hasten.cases.locate import same_source
from hasten.checkpoint.shared import run_paths
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.check import check_run
from hasten.config.load import from_dict, load_as, to_dict
from hasten.config.networks import NETWORKS, is_own, network_mistake
from hasten.config.resume_rules import RUN_RULES, flat, rule_of, text_of
from hasten.config.schema import RunConfig, Triple
from hasten.config.settled import PlannedNetwork, PlannedRun, planned_run
from hasten.nets.build import divisor
from hasten.observe.folds import finished_folds, is_cross_validation
from hasten.prediction.infer import Inference
from hasten.prediction.scores import first_output


def check_network(config: PlannedRun, spatial_dims: int) -> list[str]:
    """Mistakes: a network that can't be built, or patch sizes that it can't take."""
    unit, sample, infer = divisor(config.network), config.sample.patch, config.infer.patch
    # An inference patch that follows the training patch is not a second mistake.
    patches = {"sample.patch": sample} if infer == sample else {"sample.patch": sample, "infer.patch": infer}
    if spatial_dims == 2:
        deep = [name for name, patch in patches.items() if patch[0] != 1]
        if deep:
            return [
                f"{name}: {list(patches[name])} is 3-D; use {[1, *patches[name][1:]]} for 2-D images" for name in deep
            ]
    mistake = None if is_own(config.network) else network_mistake(config.network, spatial_dims)
    if mistake:
        return [mistake]
    piece = math.ceil(config.sample.batch_size / config.train.accumulate)
    alone = piece == 1 or config.sample.batch_size % piece == 1
    mistakes = (_patch_mistake(name, patch, unit, config.network, alone) for name, patch in patches.items())
    return [text for text in mistakes if text]


def _patch_mistake(name: str, patch: Triple, unit: Triple, network: PlannedNetwork, alone: bool) -> str | None:
    """Why the network can't take a patch. alone: whether a batch norm gets a single sample in training."""
    setting = "network.divisor" if is_own(network) else "network.strides"
    if not is_own(network) and NETWORKS[network.name].factors:
        setting = f"network.name={network.name}"
    if any(side % by for side, by in zip(patch, unit, strict=True)):
        near = [math.ceil(side / by) * by for side, by in zip(patch, unit, strict=True)]
        return f"{name}: {list(patch)} is not a multiple of {list(unit)}, as {setting} asks; use {near}"
    unscaled = network.norm == "instance" or (network.norm == "batch" and alone and name == "sample.patch")
    if patch == unit and unscaled and not is_own(network):
        larger = [2 * side if side > 1 else 1 for side in patch]
        fewer = "" if NETWORKS[network.name].factors else ", or fewer strides"
        return (
            f"{name}: {list(patch)} leaves one voxel at the coarsest level, which {network.norm} norm cannot scale; "
            f"use {larger} or more{fewer}"
        )
    return None


_OF_A_FOLD = ("data.split.fold", "train.precision")
"""Settings in which folds may differ: the fold's number, and what was measured on the machine."""
_CONTENT = ("channels", "labels", "regions", "region_values", "spatial_dims")


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One of the trained networks that predict together."""

    where: Path
    """Path of its best.pt."""
    content: dict[str, Any]
    """Content of that file, as `read_model` returns it."""


def read_members(run: str | Path | Sequence[str | Path]) -> list[Member]:
    """The networks of a run, as `hasten.predict` takes it, of all finished folds of a cross-validation, or of several.

    Raises ValueError where one can't be read, where folds differ in their settings or data, and where other runs differ
    in what networks must share to be averaged: channels, labels, regions and the preparation of images.
    """
    paths = run_paths(run)
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
    for name, text in changed_settings(one, two).items():
        if fnmatchcase(name, settings) and name not in _OF_A_FOLD:
            yield f"{other.where}: {text}"


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """The settings, as `flat` gives them, that differ, but for those of the machine; each with how, for a message."""
    return {
        name: f"{name}={text_of(value)} instead of {text_of(before[name])}"
        for name, value in now.items()
        if value != before[name]
        and rule_of(name, RUN_RULES).kind != "machine"
        and not (name == "data.source" and same_source(before[name], value))
    }


class Ensemble(nn.Module):
    """Networks as one, whose scores are the mean of their probabilities.

    These are the soft-max; with overlapping classes the sigmoid less one half, so that a class holds above 0.
    """

    def __init__(self, networks: Sequence[nn.Module], *, overlapping: bool) -> None:
        super().__init__()
        self.networks, self.overlapping = nn.ModuleList(networks), overlapping

    def forward(self, image: Tensor) -> Tensor:
        """(B, K, *S) float32. image: (B, C, *S)."""
        every = (first_output(network(image), image.ndim).float() for network in self.networks)
        shares = (scores.sigmoid() if self.overlapping else scores.softmax(1) for scores in every)
        mean = reduce(Tensor.add_, shares) / len(self.networks)
        return mean - 0.5 if self.overlapping else mean


def joined(inferences: Sequence[Inference], where: Path) -> Inference:
    """How networks are applied as one: as the first, whose windows all of them must take.

    where: the first one's file, for errors. Raises ValueError for networks that ask for other multiples.
    """
    depth, height, width = (math.lcm(*sides) for sides in zip(*(each.divisor for each in inferences), strict=True))
    unit, first = (depth, height, width), inferences[0]
    if any(side % by for side, by in zip(first.window, unit, strict=True)):
        raise ValueError(
            f"{where}: its windows of {list(first.window)} voxels are no multiple of {list(unit)}, as the other "
            "networks ask; train them with the same sample.patch, or predict with one of them"
        )
    return dataclasses.replace(first, divisor=unit)


def with_infer(members: Sequence[Member], overrides: Sequence[str]) -> list[Member]:
    """Members with overrides such as "infer.overlap=0.25".

    Raises ValueError for other sections, and for values that the networks can't take.
    """
    others = [text for text in overrides if text.partition("=")[0].partition(".")[0].strip() != "infer"]
    if others:
        raise ValueError(
            f"override '{others[0]}': a prediction takes settings of the section infer only, such as "
            "infer.overlap=0.25; the others are those that the network was trained with"
        )
    return [_changed(member, overrides) for member in members] if overrides else list(members)


def _changed(member: Member, overrides: Sequence[str]) -> Member:
    before = from_dict(member.content["config"], where=str(member.where))
    config = load_as(RunConfig, check_run, None, overrides, tree=to_dict(before))
    if config.infer.patch is None:
        config = dataclasses.replace(config, infer=dataclasses.replace(config.infer, patch=config.sample.patch))
    problems = check_network(planned_run(config, str(member.where)), member.content["spatial_dims"])
    if problems:
        raise ValueError(f"{member.where}: {problems[0]}")
    return dataclasses.replace(member, content={**member.content, "config": to_dict(config)})
