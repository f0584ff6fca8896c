"""The plan of a run before anything is measured or trained: device, cases, settings, network."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

from hasten.augment.run_chain import RunChain, run_chain
from hasten.cache.fingerprint import cached_case_set, get_fingerprint
from hasten.cache.key import Files
from hasten.cases.labels import IGNORED
from hasten.cases.regions import Region, regions_of
from hasten.cases.split import choose_split, split_cases, split_warnings
from hasten.cases.types import Case, CaseSet
from hasten.checkpoint.custom_network import with_custom_network, with_tried_divisor
from hasten.checkpoint.weights import with_network_of_weights
from hasten.config.check import check_run
from hasten.config.decision import Decision
from hasten.config.fingerprint import Fingerprint
from hasten.config.patterns import first_few
from hasten.config.plan import decide_settings
from hasten.config.scalings import length_mistakes
from hasten.config.schema import RunConfig, SplitConfig
from hasten.config.settled import PlannedRun, with_settings
from hasten.config.user_code import is_user_code
from hasten.devices import device_name, kind_of, others_here
from hasten.distribute.world import World
from hasten.nets.build import Loss, build_loss, build_network
from hasten.nets.losses.custom import check_custom_loss
from hasten.nets.size import count_flops, count_parameters
from hasten.observe.clock import Clock
from hasten.prediction.ensemble import check_network
from hasten.runtime.device import pick_device
from hasten.runtime.out_of_memory import memory_mistakes
from hasten.runtime.variant import fitted_to_device

log = logging.getLogger(__name__)

_FAR = 4.0
"""A side of a voxel that is so many times the usual one, or a part of it, may be in another unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """A planned run: its data, settings and decisions."""

    config: PlannedRun
    decisions: dict[str, Decision]
    fingerprint: Fingerprint
    case_set: CaseSet
    train: tuple[Case, ...]
    validation: tuple[Case, ...]
    device: torch.device
    augmentation: RunChain
    """Augmentation chain for full patches."""
    files: Files | None = None
    warnings: tuple[str, ...] = ()
    """What is doubtful in the source; once cases are prepared, also in their labels."""
    foreground: dict[str, float] = field(default_factory=dict)
    """Sizes of the foreground, as `training_range` returns them for the prepared cases."""
    source: bytes = b""
    """Source code of a user-defined network."""

    @property
    def regions(self) -> tuple[Region, ...]:
        """Overlapping classes, one network output each; empty where the outputs are the classes."""
        return regions_of(self.case_set)

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Class indices of each region."""
        return tuple(region.members for region in self.regions)

    @property
    def ignore_index(self) -> int | None:
        """Value of voxels without annotation in prepared label maps; None if all voxels are annotated."""
        return None if self.case_set.ignore is None else IGNORED

    @property
    def class_names(self) -> list[str]:
        """Names of the scored classes: the regions, or the foreground classes by class index."""
        return list(self.case_set.regions) or [name for _, name in sorted(self.case_set.labels.items())][1:]

    @property
    def num_outputs(self) -> int:
        """Channels of the network's scores."""
        return len(self.case_set.regions or self.case_set.labels)

    def loss(self, *, over_ranks: bool = False) -> Loss:
        """Loss of the network's scores and labels of class index, as `build_loss` makes it."""
        return build_loss(self.config.loss, over_ranks=over_ranks, regions=self.members, ignore_index=self.ignore_index)


def with_train(planned: RunPlan, **settled: Any) -> RunPlan:
    """The plan with these fields of `train` replaced."""
    return dataclasses.replace(planned, config=with_settings(planned.config, "train", **settled))


def tell_data(planned: RunPlan, clock: Clock) -> None:
    """Say what is trained on, and where."""
    data, device = planned.case_set, planned.device
    classes = planned.class_names
    more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
    clock.tell(
        f"data       {data.name}: {len(planned.train)} cases to train on, {len(planned.validation)} to validate on; "
        f"{data.spatial_dims}-D; {', '.join(classes[:3])}{more}"
    )
    threads = torch.get_num_threads()
    on_host = f"{threads} thread{'s' * (threads != 1)}"
    on_host += "".join(f"; a GPU is here, too: train.device={name}" for name in others_here())
    clock.tell(f"device     {device}, {device_name(device) if kind_of(device).accelerator else on_host}")


def tell_network(planned: RunPlan, clock: Clock) -> None:
    """Say what is trained, and what is decided about its steps first."""
    network, sample, train = planned.config.network, planned.config.sample, planned.config.train
    channels = f" of {', '.join(map(str, network.channels))} channels" if network.channels else ""
    patch = "x".join(map(str, sample.patch[3 - planned.case_set.spatial_dims :]))
    clock.tell(f"network    {network.name}{channels}; {sample.batch_size} patches of {patch} voxels in a step")
    if train.precision is None or train.channels_last is None:
        clock.tell("timing     steps in several precisions and memory formats")


def network_size(planned: RunPlan) -> dict[str, int | None]:
    """`parameters`, and `forward_flops`: of a forward pass on one patch, None where they can't be counted."""
    dims = planned.case_set.spatial_dims
    shape = (1, len(planned.case_set.channels), *planned.config.sample.patch[3 - dims :])
    with torch.random.fork_rng(devices=[]):
        module = build_net(dataclasses.replace(planned, device=torch.device("cpu")))
    return {"parameters": count_parameters(module), "forward_flops": count_flops(module, shape)}


def plan_run(
    config: RunConfig, *, world: World | None = None, device: torch.device | None = None, begun: bool = False
) -> RunPlan:
    """Read what the source declares, split it, take its fingerprint and make the plan.

    device: what `pick_device` gave for this run, if that is known. begun: the run goes on, so network.weights, maybe
    gone, is not read. Raises ValueError for anything wrong with the source, the split or the settings.
    """
    if not config.data.source:
        raise ValueError("data.source: name a data set (a folder, a dataset.json, a JSON or CSV list, or a URL of one)")
    _raise(check_run(config))
    cached, case_set = cached_case_set(config)
    if case_set.regions and config.loss.include_background:
        raise ValueError("loss.include_background: regions have no background; set it to false, or data.regions={}")
    split, split_decision = choose_split(case_set, config.data.split)
    config = with_settings(config, "data", split=split)
    train, validation = split_cases(case_set, split)
    device = device or pick_device(config.train.device, world)
    config = dataclasses.replace(config, train=fitted_to_device(config.train, device))
    fingerprint = get_fingerprint(case_set, cached)
    divisor_is_set = config.network.divisor is not None
    _raise(list(length_mistakes(config.prepare, len(case_set.channels), case_set.channels)))
    if not begun:
        config = with_network_of_weights(config, case_set.spatial_dims)
    config, custom = with_custom_network(config, case_set)
    num_outputs = len(case_set.regions or case_set.labels)
    accelerator = kind_of(device).accelerator
    full, decisions = decide_settings(fingerprint, config, num_train=len(train), accelerator=accelerator)
    _raise(check_run(full) or check_network(full, case_set.spatial_dims))
    ranks = world.size if world is not None else 1
    _raise(memory_mistakes(full, fingerprint, num_outputs=num_outputs, device=device, num_ranks=ranks))
    ignore_index = IGNORED if case_set.ignore is not None else None
    if is_user_code(full.loss.name):
        members = tuple(region.members for region in regions_of(case_set))
        digest = check_custom_loss(
            full.loss,
            num_outputs=num_outputs,
            spatial_dims=case_set.spatial_dims,
            members=members,
            ignore_index=ignore_index,
        )
        full = with_settings(full, "loss", digest=digest)
    if custom is not None:
        full, decisions = with_tried_divisor(full, custom, decisions, divisor_is_set=divisor_is_set)
    augmentation = augmentation_of(full, fingerprint, ignore_index)
    if augmentation.digest:
        full = with_settings(full, "augment", digest=augmentation.digest)
    return RunPlan(
        config=full,
        decisions={"data.split.by": split_decision, **decisions},
        fingerprint=fingerprint,
        case_set=case_set,
        train=train,
        validation=validation,
        device=device,
        augmentation=augmentation,
        files=cached.files,
        source=custom.code.source if custom is not None else b"",
        warnings=_source_warnings(case_set, split, fingerprint, train, validation),
    )


def augmentation_of(config: PlannedRun, fingerprint: Fingerprint, ignore_index: int | None = None) -> RunChain:
    """The chain of a run with full patches. Raises ValueError for one that can't be, before cases are prepared.

    ignore_index: as in `RunPlan`.
    """
    spacing = config.prepare.spacing
    if not spacing or not all(spacing):
        columns = zip(*fingerprint.spacings, strict=True)
        depth, height, width = (sorted(column)[len(column) // 2] for column in columns)
        spacing = (depth, height, width)
    return run_chain(
        config.augment,
        config.sample,
        patch=config.sample.patch,
        spatial_dims=fingerprint.spatial_dims,
        num_channels=len(fingerprint.channels),
        spacing=spacing,
        ignore_index=ignore_index,
    )


def _source_warnings(
    case_set: CaseSet, split: SplitConfig, fingerprint: Fingerprint, train: Sequence[Case], validation: Sequence[Case]
) -> tuple[str, ...]:
    """Warnings about what the source declares: its split, files beside the image of their case, and odd spacings."""
    warnings = split_warnings(case_set, split, train, validation)
    beside = fingerprint.misplaced
    if beside:
        warnings += (
            f"{case_set.source}: the corners of {len(beside)} file{'' if len(beside) == 1 else 's'} lie up to "
            f"{max(beside.values()):.2g} voxels beside those of the first image of the case: {first_few(beside)}; "
            "check the affines if that is more than rounding",
        )
    usual = [median(column) for column in zip(*fingerprint.spacings, strict=True)]
    far = [
        f"{case.id} ({_mm(spacing)})"
        for case, spacing in zip(case_set.cases, fingerprint.spacings, strict=True)
        if any(not 1 / _FAR <= mm / at <= _FAR for mm, at in zip(spacing, usual, strict=True))
    ]
    if far and fingerprint.spatial_dims == 3:  # sizes of pixels in mm decide nothing
        several = "s" * (len(far) > 1)
        warnings += (
            f"{case_set.source}: the voxels of {len(far)} case{several} are over {_FAR:g} times larger or smaller than "
            f"the usual {_mm(usual)}: {first_few(far)}; check the spacing in the headers",
        )
    return warnings


def _mm(spacing: Sequence[float]) -> str:
    return f"{' x '.join(f'{side:.3g}' for side in spacing)} mm"


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ValueError("\n".join(mistakes))


def plan_to_dict(planned: RunPlan) -> dict[str, Any]:
    """The plan file: fingerprint, decisions, warnings and what the augmentation does."""
    return {
        "warnings": list(planned.warnings),
        "fingerprint": {
            **{each.name: getattr(planned.fingerprint, each.name) for each in dataclasses.fields(planned.fingerprint)},
            "shapes": _counted(planned.fingerprint.shapes),
            "spacings": _counted(planned.fingerprint.spacings),
        },
        "decisions": {
            name: {"value": decision.value, "reason": decision.reason, "set_by": decision.set_by}
            for name, decision in planned.decisions.items()
        },
        "augmentation": [dataclasses.asdict(step) for step in planned.augmentation.steps],
    }


def _counted(rows: Iterable[tuple[float, ...]]) -> list[dict[str, Any]]:
    return [{"value": value, "cases": count} for value, count in Counter(rows).most_common()]


def build_net(planned: RunPlan) -> nn.Module:
    """The planned network on its device, its weights drawn from train.seed."""
    torch.manual_seed(planned.config.train.seed)
    network = build_network(
        planned.config.network,
        num_channels=len(planned.case_set.channels),
        num_classes=planned.num_outputs,
        spatial_dims=planned.case_set.spatial_dims,
        patch=planned.config.sample.patch,
    )
    return network.to(planned.device)
