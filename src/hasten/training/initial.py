"""The weights that a run starts from: read from a file of Hasten, MONAI, nnU-Net or another program, and fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, serialization

from hasten.checkpoint.file import is_checkpoint, read_checkpoint
from hasten.checkpoint.shared import local_copy, read_safetensors
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.patterns import first_few
from hasten.files import first_line, hash_file
from hasten.nets.weights import Fit, fit_weights
from hasten.training.plan import RunPlan, build_net

_NESTED = ("weights", "state_dict", "network_weights", "model_state_dict", "average", "model", "network", "net")
"""Keys under which a file may hold the state dict, likelier ones first."""
_DEEPEST = 3
_SAFE: list[Any] = [
    *((np._core.multiarray.scalar, f"numpy.{home}.multiarray.scalar") for home in ("core", "_core")),  # type: ignore[attr-defined]
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?")),
]
"""NumPy's scalars, which nnU-Net saves among its scores: data, not code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """The state dict of a file."""

    path: Path
    key: str
    """Place of the state dict in the file; "" is the file itself."""
    weights: dict[str, Tensor]
    """Tensors of any shape, by name."""
    sha256: str
    """SHA-256 of the file's bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The weights that a network starts from, and how they fit."""

    saved: Saved
    fit: Fit
    parameters: int
    """Numbers of the network in all."""

    def summary(self) -> str:
        """One line: how much of the network comes from the file."""
        fit, total = self.fit, len(self.fit.values) + len(self.fit.left)
        share = sum(value.numel() for value in fit.values.values()) / max(1, self.parameters)
        counts = {"taken": fit.taken, "adapted": fit.adapted, "left as drawn": fit.left}
        parts = ", ".join(f"{len(names)} {what}" for what, names in counts.items() if names)
        return f"{len(fit.values)} of {total} tensors, {share:.1%} of the weights, from {self.saved.path}: {parts}"

    def table(self) -> str:
        """`summary`, and the first names of what was adapted, left and not used."""
        lines = [f"weights: {self.summary()}"]
        saved_prefix, network_prefix = self.fit.prefixes
        if saved_prefix != network_prefix:
            lines.append(f"  names       {saved_prefix or '(none)'} in the file is {network_prefix or '(none)'} here")
        groups = {
            "adapted": [f"{name} ({how})" for name, how in self.fit.adapted.items()],
            "left": [f"{name} ({why})" for name, why in self.fit.left.items()],
            "not used": list(self.fit.unused),
        }
        return "\n".join([*lines, *(f"  {title:<11} {first_few(names)}" for title, names in groups.items() if names)])

    def record(self) -> dict[str, Any]:
        """The content of weights.json."""
        fit = self.fit
        return {
            "file": str(self.saved.path),
            "sha256": self.saved.sha256,
            "key": self.saved.key,
            "prefixes": {"file": fit.prefixes[0], "network": fit.prefixes[1]},
            "taken": list(fit.taken),
            "adapted": dict(fit.adapted),
            "left": dict(fit.left),
            "unused": list(fit.unused),
        }


def start_of(planned: RunPlan) -> Start | None:
    """What network.weights names, fitted to the planned network; None where nothing is named.

    Raises ValueError for a file that can't be read or is not safe to, that has NaN, or of which nothing fits.
    """
    if planned.config.network.weights is None:
        return None
    try:
        saved = read_weights(planned.config.network.weights)
    except ValueError as error:
        raise ValueError(f"network.weights: {error}") from None
    state = build_net(planned).cpu().state_dict()
    try:
        fit = fit_weights(state, saved.weights)
    except ValueError as error:
        raise ValueError(f"network.weights: {saved.path}: {error}") from None
    return Start(saved=saved, fit=fit, parameters=sum(value.numel() for value in state.values()))


def read_weights(path: str | Path) -> Saved:
    """The state dict that a file holds, on the CPU. No code in the file is run (`weights_only`).

    path: a run's or a shared folder, hf://OWNER/NAME, or a file: best.pt, a .safetensors, or what torch.load reads, as
    a MONAI bundle's model.pt or nnU-Net's checkpoint_final.pth; under a usual key or at its top. Raises ValueError that
    names the file if there is none, it can't be read, holds more than data, no tensors, or NaN or infinite weights.
    """
    path = local_copy(path)
    if not path.exists():
        raise ValueError(f"{path}: no such file or run")
    file = model_file(path)
    if path.is_dir() and not file.is_file():
        raise ValueError(f"{path}: is no run (it has no checkpoints/best.pt); name a file of weights")
    try:
        sha256 = hash_file(file)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror or error})") from error
    content = read_model(path) if path.is_dir() else _content(file)
    place = _state_dict(content)
    if place is None:
        top_level = ", ".join(map(str, list(content)[:5])) if isinstance(content, Mapping) else type(content).__name__
        looked = f"looked at its top and under {', '.join(_NESTED)}"
        raise ValueError(f"{file}: holds no state dict (it has {top_level}); {looked}")
    key, weights = place
    # torch has no isfinite for floats of one byte.
    wide = {name: value.float() if value.itemsize == 1 else value for name, value in weights.items()}
    broken = [name for name, value in wide.items() if not value.isfinite().all()]
    if broken:
        found = f"holds NaN or infinite values in {len(broken)} tensors, such as {broken[0]}"
        raise ValueError(f"{file}: {found}; take an earlier checkpoint of that training")
    return Saved(path=file, key=key, weights=weights, sha256=sha256)


def _content(file: Path) -> Any:
    """What a file holds, read as its kind asks for."""
    if is_checkpoint(file):
        return read_checkpoint(file)
    if file.suffix.lower() == ".safetensors":
        return read_safetensors(file)
    try:
        with serialization.safe_globals(_SAFE):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a crafted file can make the reader raise anything
        raise ValueError(
            f"{file}: is damaged, or holds more than weights, and nothing in it was run ({first_line(error)}); name a "
            "state dict as torch.save writes it, or a .safetensors"
        ) from error


def _state_dict(content: Any, at: tuple[str, ...] = ()) -> tuple[str, dict[str, Tensor]] | None:
    """Place of the state dict in a file's content, and its tensors; None where there are none.

    What lies under a usual key comes before the tensors beside it, such as a random state.
    """
    if not isinstance(content, Mapping):
        return None
    inner = (_state_dict(content.get(key), (*at, key)) for key in _NESTED if len(at) < _DEEPEST)
    nested = next((each for each in inner if each is not None), None)
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor) and _is_plain(value)}
    return nested or ((".".join(at), tensors) if tensors else None)


def _is_plain(value: Tensor) -> bool:
    odd = value.is_meta or value.is_complex() or value.is_quantized
    return not odd and value.layout is torch.strided
