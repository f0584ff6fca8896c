"""Label maps for new images, each in its own geometry."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.cases.formats import is_nifti, is_picture
from hasten.cases.nifti import write_label_nifti
from hasten.cases.picture import write_label_picture
from hasten.cases.read import read_image
from hasten.cases.types import Case, Volume
from hasten.config.load import from_dict
from hasten.config.schema import PrepareConfig, RunConfig
from hasten.engine.infer import Inference, infer_labels
from hasten.engine.inputs import find_cases, listing
from hasten.engine.job import inference_of, pick_device
from hasten.engine.step import memory_format
from hasten.engine.weights import load_weights, read_model
from hasten.nets.build import build_network
from hasten.prepare.case import prepare_case
from hasten.prepare.restore import restore_label
from hasten.prepare.types import Prepared

Tick = Callable[[int, int, Path], None]
"""Called with (cases done, cases in all, label map written) after each case."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A trained network and what its input and output mean."""

    network: nn.Module
    prepare: PrepareConfig
    inference: Inference
    channels: tuple[str, ...]
    values: tuple[int, ...]
    """Label value of each class index."""


def predict(
    run: str | Path,
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    overwrite: bool = False,
    device: str = "auto",
    tick: Tick | None = None,
) -> list[Path]:
    """Write a label map for every input, with the shape, affine and orientation of the input; returns the paths.

    run: a run directory, or a best.pt. inputs: image files, or folders of them; `find_cases` says what they hold. Names
    in `out` are those of the cases, label values those of the training set. Everything that names and headers can tell
    (a missing file, other channels, an output that exists without `overwrite`, that is an input or that two inputs
    share) is a ValueError before anything is predicted or written. An input whose voxels then prove unreadable does not
    stop the others: once they are written, one ValueError lists those that failed.
    """
    run, out = Path(run), Path(out)
    files = [Path(path) for path in ([inputs] if isinstance(inputs, (str, Path)) else inputs)]
    content = read_model(run)
    cases = find_cases(files, content["channels"], content["spatial_dims"])
    targets = _targets(cases, out, overwrite)
    model = load_model(content, where=str(run), device=device)
    made = _make_folder(out)
    written: list[Path] = []
    failures: list[str] = []
    for case, target in zip(cases, targets, strict=True):
        try:
            volume = read_image(case)
            prepared = prepare_case(volume, None, id=case.id, spec=model.prepare)
        except ValueError as error:
            failures.append(str(error) if str(case.image[0].parent) in str(error) else f"{case.image[0]}: {error}")
            continue
        _write(target, _labelled(prepared, model), volume, case)
        written.append(target)
        if tick:
            tick(len(written) + len(failures), len(cases), target)
    if made and not written:
        with suppress(OSError):
            out.rmdir()
    if failures:
        heading = f"{len(failures)} of {len(cases)} inputs could not be predicted"
        others = f" ({len(written)} others are in {out})" if written else ""
        raise ValueError(f"{listing(failures, heading)}{others}")
    return targets


def load_model(content: dict[str, Any], *, where: str, device: str = "auto") -> Model:
    """The network of a best.pt's content, ready to predict. `where` names it in errors. Raises ValueError."""
    # A device goes through the configuration, which knows what may stand there.
    tree = {**content["config"], "train": {**content["config"]["train"], "device": device}}
    config = _on_device(from_dict(tree, where=where))
    target, dims = torch.device(config.train.device), content["spatial_dims"]
    network = build_network(
        config.network, num_channels=len(content["channels"]), num_classes=len(content["labels"]), spatial_dims=dims
    )
    load_weights(network, content["weights"], where=where)
    layout = memory_format(dims, bool(config.train.channels_last))
    return Model(
        network=network.to(target).to(memory_format=layout).eval(),  # type: ignore[call-overload]
        prepare=config.prepare,
        inference=inference_of(config, spatial_dims=dims, device=target),
        channels=tuple(content["channels"]),
        values=tuple(sorted(int(value) for value in content["labels"])),
    )


def _on_device(config: RunConfig) -> RunConfig:
    """The settings with the device found; fp16 is a GPU's precision, which few CPUs have convolutions for."""
    device = pick_device(config.train.device)
    precision = "fp32" if device.type == "cpu" and config.train.precision == "fp16" else config.train.precision
    return dataclasses.replace(config, train=dataclasses.replace(config.train, device=str(device), precision=precision))


def _labelled(prepared: Prepared, model: Model) -> Any:
    image = torch.from_numpy(prepared.image)
    [(_, label)] = infer_labels(model.network, [image], model.inference)
    return restore_label(label.cpu().numpy(), prepared.geometry, model.values)


def _targets(cases: list[Case], out: Path, overwrite: bool) -> list[Path]:
    targets = [out / (f"{case.id}.png" if is_picture(case.image[0]) else f"{case.id}.nii.gz") for case in cases]
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        same = [str(case.image[0]) for case, target in zip(cases, targets, strict=True) if target == twice]
        raise ValueError(f"{twice}: {' and '.join(same)} would both be written there; give each its own --out")
    # By file number, which also knows links and file systems that take A for a.
    inputs = {_number(image) for case in cases for image in case.image}
    for target in targets:
        if target.exists() and _number(target) in inputs:
            raise ValueError(f"{target}: is an input; choose another --out")
        if target.exists() and not overwrite:
            raise ValueError(f"{target}: exists; add --overwrite to replace it, or choose another --out")
    return targets


def _number(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _make_folder(out: Path) -> bool:
    """Make `out` ready for writing, and say whether it is new. Raises ValueError where that fails."""
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A real write: permission bits say nothing about read-only mounts or a superuser.
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"\0")
    except OSError as error:
        raise ValueError(f"{out}: cannot be written to ({error.strerror}); choose another --out") from None
    return made


def _write(target: Path, label: Any, volume: Volume, case: Case) -> None:
    try:
        if is_picture(target):
            write_label_picture(target, label)
        else:
            source = case.image[0]
            write_label_nifti(target, label, volume.affine, like=source if is_nifti(source) else None)
    except OSError as error:
        raise ValueError(
            f"{target}: cannot be written ({error.strerror}); free some space or choose another --out"
        ) from None
