"""The settings of a run after its plan has set every open field.

In a `RunConfig` None means that a field is open. Only `planned_run` checks this: code that takes a
`PlannedRun` or a section of one gets numbers. `dataclasses.replace` keeps the type.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any, TypeVar

from hasten.config.schema import InferConfig, NetworkConfig, RunConfig, SampleConfig, Stages, TrainConfig, Triple

_Config = TypeVar("_Config")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSample(SampleConfig):
    patch: Triple
    batch_size: int
    stages: Stages


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedNetwork(NetworkConfig):
    name: str
    channels: tuple[int, ...]
    strides: tuple[Triple, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTrain(TrainConfig):
    """Precision, memory format and compiling may still be open: they are measured."""

    steps: int
    learning_rate: float
    validate_every: int
    checkpoint_every: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedInfer(InferConfig):
    patch: Triple


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class PlannedRun(RunConfig):
    sample: PlannedSample
    network: PlannedNetwork
    train: PlannedTrain
    infer: PlannedInfer


_SECTIONS = {"sample": PlannedSample, "network": PlannedNetwork, "train": PlannedTrain, "infer": PlannedInfer}


def planned_run(config: RunConfig, where: str = "the run") -> PlannedRun:
    """`config` as planned. Raises ValueError that begins with `where` if something is open that a plan decides."""
    names = undecided(config)
    if names:
        raise ValueError(f"{where}: leaves {', '.join(names)} open; set it, or let `hasten plan` decide")
    sections = {name: kind(**fields_of(getattr(config, name))) for name, kind in _SECTIONS.items()}
    return PlannedRun(**{**fields_of(config), **sections})


def undecided(config: RunConfig) -> list[str]:
    """Dotted names of the fields that are open and that a plan decides."""
    return [
        f"{name}.{key}"
        for name, kind in _SECTIONS.items()
        for key in inspect.get_annotations(kind)
        if getattr(getattr(config, name), key) is None
    ]


def with_settings(config: _Config, section: str, **values: Any) -> _Config:
    """`config` with these fields of a section replaced."""
    whole: Any = config
    result: _Config = dataclasses.replace(whole, **{section: dataclasses.replace(getattr(config, section), **values)})
    return result


def fields_of(section: Any) -> dict[str, Any]:
    """Value by the name of the field, of a section or of the whole."""
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
