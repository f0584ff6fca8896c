"""Loading of weights into a network, with a readable error where they do not fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hasten.checkpoint.file import is_checkpoint, read_checkpoint
from hasten.config.load import from_dict
from hasten.config.patterns import first_few
from hasten.config.schema import NetworkConfig, RunConfig
from hasten.files import expanded
from hasten.nets.weights import last_weight
from hasten.observe.folds import refuse_cross_validation
from hasten.observe.rundir import CHECKPOINTS

_WRAPPERS = {"module.": "DistributedDataParallel or DataParallel", "_orig_mod.": "torch.compile"}
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""(this network's shape, the saved one) by name."""
_CONTENT: dict[str, type] = {"weights": dict, "config": dict, "labels": dict, "channels": list, "spatial_dims": int,
                             "step": int, "regions": dict, "region_values": dict,
                             "foreground": dict, "spacing": dict}  # fmt: skip
_LATER: dict[str, Any] = {"regions": {}, "region_values": {}, "foreground": {}, "spacing": {}}
"""Entries that older files lack."""


def model_file(run: str | Path) -> Path:
    """The best.pt of a run directory; a file is one itself."""
    run = Path(run)
    return run / CHECKPOINTS / "best.pt" if run.is_dir() else run


def run_of(model: Path) -> Path:
    """The run directory of a best.pt; of one elsewhere, its folder."""
    return model.parent.parent if model.parent.name == CHECKPOINTS else model.parent


def read_model(run: str | Path) -> dict[str, Any]:
    """What best.pt holds, as `model_content` makes it: `weights`, `config`, `labels`, `channels`, `step`, `dice` ...

    Older files may lack `regions`, `region_values`, `iou`, `foreground` and `spacing`.

    run: a run directory, or a best.pt. Raises ValueError if there is none, or it is damaged, a state to resume, a
    cross-validation, or holds something else where one of these belongs.
    """
    if not Path(run).exists():
        raise ValueError(f"{run}: no such run; name the folder of a training run, or its best.pt")
    refuse_cross_validation(Path(run))
    path = model_file(run)
    content = read_checkpoint(path)
    if "weights" not in content:
        raise ValueError(
            f"{path}: holds the state of a run to resume, not a model; name the run's folder or its best.pt"
        )
    if isinstance(content.get("config"), str):
        raise ValueError(f"{path}: is of a run on slides, which only `hasten train`, `predict` and `report` take")
    mistake = _content_mistake({**_LATER, **content})
    if mistake is not None:
        raise ValueError(f"{path}: is no model as Hasten writes it, as {mistake}; restore it from a copy")
    return content


def _content_mistake(content: Mapping[str, Any]) -> str | None:
    for name, kind in _CONTENT.items():
        if not isinstance(content.get(name), kind):
            return f"its {name} is a {type(content.get(name)).__name__} and not a {kind.__name__}"
    if not isinstance(content["config"].get("train"), dict):
        return "its config has no section train"
    if content["spatial_dims"] not in (2, 3):
        return f"its spatial_dims is {content['spatial_dims']}"
    if not all(re.fullmatch(r"\d+", str(value)) for value in content["labels"]):
        return f"its labels are {list(content['labels'])}"
    for name in ("foreground", "spacing"):
        statistics = content[name]
        sizes = list(statistics.values()) if name == "foreground" else [mm for row in statistics.values() for mm in row]
        if statistics and (
            set(statistics) != {"smallest", "median", "largest"} or not all(type(v) is float for v in sizes)
        ):
            return f"its {name} is {statistics}"
    return None


def with_network_of_weights(config: RunConfig, spatial_dims: int) -> RunConfig:
    """The settings with the network of the run that network.weights names, where they leave the network open.

    Another network.name than that run's leaves them as they are, and so does what is no model of a run. Strides and
    kernels are taken for images of the same dimension only. Raises ValueError for a damaged file.
    """
    own, usual = config.network, NetworkConfig()
    file = model_file(expanded(own.weights)) if own.weights is not None else None
    if file is None or not file.is_file() or not is_checkpoint(file):
        return config
    content = read_checkpoint(file)
    if not isinstance(content.get("config"), dict):
        return config
    saved = from_dict(content["config"], str(file)).network
    if own.name not in (None, saved.name):
        return config
    names = [field.name for field in dataclasses.fields(usual) if field.name not in ("weights", "digest")]
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
    """One line on how a saved state dict differs from a network's own, and why it may; None where it fits."""
    missing = [name for name in expected if name not in saved]
    unexpected = [name for name in saved if name not in expected]
    shapes: Shapes = {
        name: (_shape(expected[name]), _shape(saved[name]))
        for name in expected
        if name in saved and _shape(expected[name]) != _shape(saved[name])
    }
    odd = [
        name
        for name, value in expected.items()
        if isinstance(other := saved.get(name), Tensor) and (other.is_meta or other.is_complex() != value.is_complex())
    ]
    if odd:
        return f"{_counted(odd)} of complex numbers or without any: {first_few(odd)}; likely a file that was altered"
    if not (missing or unexpected or shapes):
        return None
    parts = []
    if missing:
        parts.append(f"{_counted(missing)} missing: {first_few(missing)}")
    if unexpected:
        parts.append(f"{_counted(unexpected)} not known here: {first_few(unexpected)}")
    if shapes:
        listed = [f"{name} is {list(one)} here and {list(other)} saved" for name, (one, other) in shapes.items()]
        parts.append(f"{_counted(listed)} of another shape: {first_few(listed)}")
    causes = _causes(expected, saved, missing, unexpected, shapes)
    return "; ".join([*parts, f"likely {' and '.join(causes)}"])


def _causes(
    expected: Mapping[str, Any], saved: Mapping[str, Any], missing: list[str], unexpected: list[str], shapes: Shapes
) -> list[str]:
    for prefix, wrapper in _WRAPPERS.items():
        for side, one, other in (("saved", saved, expected), ("here", expected, saved)):
            if {name.removeprefix(prefix) for name in one} == set(other) and set(one) != set(other):
                return [f"the network is wrapped by {wrapper} where it is {side}: take its own state dict there"]
    if any(len(one) != len(other) for one, other in shapes.values()):
        return ["another number of spatial dimensions (2-D and 3-D weights differ)"]
    if not (missing or unexpected):
        return _of_shapes(expected, shapes)
    from_names = _of_names({**saved, **expected}, missing, unexpected)
    if from_names is None:
        return ["another architecture (network.name, its number of levels or of residual units)"]
    return [from_names, *(_of_shapes(expected, shapes) if shapes else [])]


def _of_names(all_weights: Mapping[str, Any], missing: list[str], unexpected: list[str]) -> str | None:
    """What kind of layer has weights that only one of the two networks has."""
    names = [*missing, *unexpected]
    with_statistics = {_parent(name) for name in names if name.endswith(".running_mean")}
    if {_parent(name) for name in names} <= with_statistics:
        return "another norm (only a batch norm has running statistics)"
    if all(name.endswith(".bias") for name in names):
        return "convolutions that have a bias in only one of the two"
    if all(name.endswith(".weight") and _shape(all_weights[name]) == (1,) for name in names):
        return "another activation (only a PReLU has a weight)"
    return None


def _of_shapes(expected: Mapping[str, Any], shapes: Shapes) -> list[str]:
    """Numbers of channels that were others: those of the image, those of the scores, or those in between."""
    changes: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name, (one, other) in shapes.items():
        for axis, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                changes.setdefault(pair, []).append((name, axis))
    last = last_weight(expected)
    causes = []
    for (expected_size, saved_size), places in changes.items():
        if (last, 0) in places:
            causes.append(f"another number of classes ({expected_size} here, {saved_size} saved)")
        elif all(axis == 1 for _, axis in places):
            causes.append(f"another number of image channels ({expected_size} here, {saved_size} saved)")
        else:
            return ["other widths (network.channels)"]
    return causes


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} weight{'' if len(names) == 1 else 's'}"
