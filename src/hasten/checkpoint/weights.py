"""Loading of weights into a network, with a readable error where they do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from hasten.checkpoint.file import is_checkpoint, read_checkpoint
from hasten.checkpoint.shared import MODEL, SUMS, is_shared, local_copy, read_shared
from hasten.config.load import from_dict
from hasten.config.patterns import first_few
from hasten.config.schema import NetworkConfig, RunConfig
from hasten.observe.folds import refuse_cross_validation
from hasten.observe.rundir import BEST_PT, CHECKPOINTS


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    """What a model holds that networks are built from."""

    weights: dict[str, Any]
    config: dict[str, Any]
    labels: dict[str, str]
    channels: list[str]
    spatial_dims: Literal[2, 3]
    regions: dict[str, list[int]] = field(default_factory=dict)
    region_values: dict[str, int] = field(default_factory=dict)


def model_file(run: str | Path) -> Path:
    """The best.pt of a run directory, or the model.safetensors of a shared folder; a file is one itself."""
    run = Path(run)
    if not run.is_dir():
        return run
    best = run / CHECKPOINTS / BEST_PT
    is_run = best.is_file() or not any((run / name).is_file() for name in (MODEL, SUMS))
    return best if is_run else run / MODEL


def run_of(model: Path) -> Path:
    """The run directory of a best.pt; of one elsewhere, its folder."""
    return model.parent.parent if model.parent.name == CHECKPOINTS else model.parent


def read_model(run: str | Path) -> dict[str, Any]:
    """What best.pt holds, as `model_content` makes it: `weights`, `config`, `labels`, `channels`, `step`, `dice` ...

    Older files may lack `regions`, `region_values`, `iou`, `foreground` and `spacing`.

    run: a run directory, its best.pt, or a folder as `read_shared` reads it. Raises ValueError if there is none, or it
    is damaged, a state to resume or a cross-validation.
    """
    if not Path(run).exists():
        raise ValueError(f"{run}: no such run; name the folder of a training run, or its best.pt")
    refuse_cross_validation(Path(run))
    path = model_file(run)
    content = _read(path)
    if "weights" not in content:
        raise ValueError(
            f"{path}: holds the state of a run to resume, not a model; name the run's folder or its best.pt"
        )
    if isinstance(content.get("config"), str):
        raise ValueError(f"{path}: is of a run on slides, which only `hasten train`, `predict` and `report` take")
    try:
        TypeAdapter(_Content).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: is no model, as of its {place}: {first['msg']}; restore it from a copy") from None
    return content


def _read(file: Path) -> dict[str, Any]:
    return read_shared(file.parent) if file.suffix == ".safetensors" else read_checkpoint(file)


def with_network_of_weights(config: RunConfig, spatial_dims: int) -> RunConfig:
    """The settings with the network of the run that network.weights names, where they leave the network open.

    Another network.name than that run's leaves them as they are, and so does what is no model of a run. Strides and
    kernels are taken for images of the same dimension only. Raises ValueError for a damaged file.
    """
    own, usual = config.network, NetworkConfig()
    file = model_file(local_copy(own.weights)) if own.weights is not None else None
    if file is None or not file.is_file() or not (is_shared(file) or is_checkpoint(file)):
        return config
    content = _read(file)
    if not isinstance(content.get("config"), dict):
        return config
    saved = from_dict(content["config"], str(file)).network
    if own.name not in (None, saved.name):
        return config
    names = [each.name for each in dataclasses.fields(usual) if each.name not in ("weights", "digest")]
    if content["spatial_dims"] != spatial_dims:
        names = [name for name in names if name not in ("strides", "kernel_size", "divisor")]
    taken = {name: getattr(saved, name) for name in names if getattr(own, name) == getattr(usual, name)}
    return dataclasses.replace(config, network=dataclasses.replace(own, **taken))


def load_weights(network: nn.Module, state: Mapping[str, Any], *, where: str = "weights") -> None:
    """Copy a state dict into a network; it must fit. `where` names it in errors.

    Raises ValueError with `describe_mismatch`, or for a NaN or infinite weight, the network unchanged.
    """
    difference = describe_mismatch(network.state_dict(), state)
    if difference is not None:
        raise ValueError(f"{where}: of another network ({difference})")
    broken = [name for name, value in state.items() if isinstance(value, Tensor) and not value.isfinite().all()]
    if broken:
        raise ValueError(
            f"{where}: holds NaN or infinite values in {_counted(broken)}: {first_few(broken)}; restore the file "
            "from a copy, or train again, with a lower train.learning_rate if the loss was NaN"
        )
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{where}: its weights do not load ({' '.join(str(error).split())})") from error


def describe_mismatch(expected: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """One line on how a saved state dict differs from a network's own; None where it fits."""
    sizes = {name: (_shape(expected[name]), _shape(saved[name])) for name in expected if name in saved}
    parts = {
        "missing": [name for name in expected if name not in saved],
        "not known here": [name for name in saved if name not in expected],
        "of another shape": [
            f"{name} is {one} here and {other} saved" for name, (one, other) in sizes.items() if one != other
        ],
    }
    said = [f"{_counted(names)} {what}: {first_few(names)}" for what, names in parts.items() if names]
    return "; ".join(said) or None


def _shape(value: Any) -> list[int]:
    return list(getattr(value, "shape", ()))


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} weight{'' if len(names) == 1 else 's'}"
