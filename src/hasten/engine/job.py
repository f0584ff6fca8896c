"""What a run is made of before anything is measured or trained: device, cases, plan, network."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.cache.fingerprint import get_fingerprint
from hasten.cases.sources import load_case_set
from hasten.cases.split import split_cases
from hasten.cases.types import Case, CaseSet
from hasten.config.check import check_run
from hasten.config.fingerprint import Fingerprint
from hasten.config.load import from_dict, to_dict
from hasten.config.plan import Decision, make_plan
from hasten.config.schema import RunConfig
from hasten.engine.infer import Inference
from hasten.nets.build import build_network, divisor


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A run whose data are known and whose configuration is full but for what is measured."""

    config: RunConfig
    decisions: dict[str, Decision]
    fingerprint: Fingerprint
    case_set: CaseSet
    train: tuple[Case, ...]
    validation: tuple[Case, ...]
    device: torch.device

    @property
    def class_names(self) -> list[str]:
        """Foreground names in the order of the class index."""
        return [name for _, name in sorted(self.case_set.labels.items())][1:]


def plan_run(config: RunConfig, plan: Path | None = None) -> Planned:
    """Read what the source declares, split it, take its fingerprint and settle the plan.

    `plan`: a plan.json whose (perhaps edited) decisions are taken where the configuration leaves a field open.
    Raises ValueError for anything wrong with the source, the split or the plan.
    """
    if not config.data.source:
        raise ValueError("data.source: name a data set (a folder, a dataset.json, a JSON or CSV list)")
    if plan is not None:
        config = with_plan(config, plan)
    case_set = load_case_set(config.data.source, config.data.spatial_dims)
    train, validation = split_cases(case_set, config.data.split)
    device = pick_device(config.train.device)
    fingerprint = get_fingerprint(case_set, config.cache)
    full, decisions = make_plan(fingerprint, config, num_train=len(train), cuda=device.type == "cuda")
    mistakes = [*check_run(full), *_check_shapes(full)]
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return Planned(
        config=full,
        decisions=decisions,
        fingerprint=fingerprint,
        case_set=case_set,
        train=train,
        validation=validation,
        device=device,
    )


def with_plan(config: RunConfig, path: Path) -> RunConfig:
    """`config` with the decisions of a plan file in every field that it leaves open."""
    try:
        decisions = json.loads(path.read_text())["decisions"]
        values = {name: decision["value"] for name, decision in decisions.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a plan as `hasten plan` writes it ({error})") from error
    tree = to_dict(config)
    for name, value in values.items():
        section, _, key = name.partition(".")
        if section not in tree or key not in tree[section]:
            raise ValueError(f"{path}: decisions name {name}, which is no field of a run")
        if tree[section][key] is None:
            tree[section][key] = value
    return from_dict(tree, where=str(path))


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises ValueError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(
            f"train.device={name}: this machine has {torch.cuda.device_count()} CUDA devices; use auto or cpu"
        )
    return device


def _check_shapes(config: RunConfig) -> list[str]:
    """Patches that the network cannot halve often enough."""
    unit, mistakes = divisor(config.network), []
    for name, patch in (("sample.patch", config.sample.patch), ("infer.patch", config.infer.patch)):
        assert patch is not None
        if any(side % by for side, by in zip(patch, unit, strict=True)):
            near = [math.ceil(side / by) * by for side, by in zip(patch, unit, strict=True)]
            mistakes.append(
                f"{name}: {list(patch)} is not a multiple of {list(unit)}, as network.strides asks; use {near}"
            )
    return mistakes


def plan_to_dict(planned: Planned) -> dict[str, Any]:
    """The plan file: fingerprint and decisions."""
    return {
        "fingerprint": dataclasses.asdict(planned.fingerprint),
        "decisions": {
            name: {"value": decision.value, "reason": decision.reason} for name, decision in planned.decisions.items()
        },
    }


def build_net(planned: Planned) -> nn.Module:
    """The planned network on its device, its weights drawn from train.seed."""
    torch.manual_seed(planned.config.train.seed)
    network = build_network(
        planned.config.network,
        num_channels=len(planned.case_set.channels),
        num_classes=len(planned.case_set.labels),
        spatial_dims=planned.case_set.spatial_dims,
    )
    return network.to(planned.device)


def inference_of(config: RunConfig, *, spatial_dims: int, device: torch.device) -> Inference:
    """How a full configuration applies its network to volumes."""
    train, infer = config.train, config.infer
    assert infer.patch is not None
    assert train.precision is not None
    assert train.channels_last is not None
    return Inference(
        patch=infer.patch,
        divisor=divisor(config.network),
        whole_up_to=4 * math.prod(infer.patch),
        overlap=infer.overlap,
        batch_size=infer.batch_size,
        precision=train.precision,
        channels_last=train.channels_last,
        spatial_dims=spatial_dims,
        device=device,
    )
