"""Weights into a network, with a readable difference where they are another network's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hasten.engine.checkpoint import read_checkpoint
from hasten.observe.rundir import CHECKPOINTS

_SHOWN = 3
_WRAPPERS = {"module.": "DistributedDataParallel or DataParallel", "_orig_mod.": "torch.compile"}
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""(this network's shape, the saved one) by name."""


def read_model(run: str | Path) -> dict[str, Any]:
    """What best.pt holds, as `model_content` makes it: `weights`, `config`, `labels`, `channels`, `step`, `dice` ...

    A file written before there were regions has no `regions`, `region_values` and `iou`.

    run: a run directory, or a best.pt. Raises ValueError if there is none, or it is damaged or a state to resume.
    """
    run = Path(run)
    if not run.exists():
        raise ValueError(f"{run}: no such run; name the folder of a training run, or its best.pt")
    path = run / CHECKPOINTS / "best.pt" if run.is_dir() else run
    content = read_checkpoint(path)
    if "weights" not in content:
        raise ValueError(
            f"{path}: holds the state of a run to resume, not a model; name the run's folder or its best.pt"
        )
    return content


def load_weights(network: nn.Module, state: Mapping[str, Any], *, where: str = "weights") -> None:
    """Copy a state dict into a network; it must fit. `where` names it in errors.

    Raises ValueError with `describe_mismatch`, the network unchanged.
    """
    difference = describe_mismatch(network.state_dict(), state)
    if difference is not None:
        raise ValueError(f"{where}: of another network ({difference})")
    network.load_state_dict(state)


def describe_mismatch(here: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    """In one line, how a saved state dict differs from a network's own, and why it may; None where it fits."""
    missing = [name for name in here if name not in saved]
    unexpected = [name for name in saved if name not in here]
    shapes: Shapes = {
        name: (_shape(here[name]), _shape(saved[name]))
        for name in here
        if name in saved and _shape(here[name]) != _shape(saved[name])
    }
    if not (missing or unexpected or shapes):
        return None
    parts = []
    if missing:
        parts.append(f"{_counted(missing)} missing: {_few(missing)}")
    if unexpected:
        parts.append(f"{_counted(unexpected)} not known here: {_few(unexpected)}")
    if shapes:
        listed = [f"{name} is {list(one)} here and {list(other)} saved" for name, (one, other) in shapes.items()]
        parts.append(f"{_counted(listed)} of another shape: {_few(listed)}")
    causes = _causes(here, saved, missing, unexpected, shapes)
    return "; ".join([*parts, f"likely {' and '.join(causes)}"])


def _causes(
    here: Mapping[str, Any], saved: Mapping[str, Any], missing: list[str], unexpected: list[str], shapes: Shapes
) -> list[str]:
    for prefix, wrapper in _WRAPPERS.items():
        for side, one, other in (("saved", saved, here), ("here", here, saved)):
            if {name.removeprefix(prefix) for name in one} == set(other) and set(one) != set(other):
                return [f"the network is wrapped by {wrapper} where it is {side}: take its own state dict there"]
    if any(len(one) != len(other) for one, other in shapes.values()):
        return ["another number of spatial dimensions (2-D and 3-D weights differ)"]
    if not (missing or unexpected):
        return _of_shapes(here, shapes)
    from_names = _of_names({**saved, **here}, missing, unexpected)
    if from_names is None:
        return ["another architecture (network.name, its number of levels or of residual units)"]
    return [from_names, *(_of_shapes(here, shapes) if shapes else [])]


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


def _of_shapes(here: Mapping[str, Any], shapes: Shapes) -> list[str]:
    """Which numbers of channels were others: those of the image, those of the scores, or those in between."""
    changes: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name, (one, other) in shapes.items():
        for axis, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                changes.setdefault(pair, []).append((name, axis))
    last = _last(here)
    found = []
    for (ours, theirs), places in changes.items():
        if (last, 0) in places:
            found.append(f"another number of classes ({ours} here, {theirs} saved)")
        elif all(axis == 1 for _, axis in places):
            found.append(f"another number of image channels ({ours} here, {theirs} saved)")
        else:
            return ["other widths (network.channels)"]
    return found


def _last(weights: Mapping[str, Any]) -> str:
    """The last weight that is not one of before under a second name: an output's bias, where it has one."""
    seen: set[int] = set()
    last = ""
    for name, value in weights.items():
        if isinstance(value, Tensor) and value.numel() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            last = name
    return last


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} weight{'' if len(names) == 1 else 's'}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
