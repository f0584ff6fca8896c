"""Label maps for new images, each in its own geometry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hasten.cases.formats import is_picture, list_files, stem
from hasten.cases.nifti import write_label_nifti
from hasten.cases.picture import write_label_picture
from hasten.cases.read import read_image
from hasten.cases.types import Case
from hasten.config.load import from_dict
from hasten.config.schema import RunConfig
from hasten.engine.checkpoint import read_checkpoint
from hasten.engine.infer import infer_labels
from hasten.engine.job import inference_of, pick_device
from hasten.engine.step import memory_format
from hasten.nets.build import build_network
from hasten.observe.rundir import CHECKPOINTS
from hasten.prepare.case import prepare_case
from hasten.prepare.restore import restore_label


def predict(
    run: Path, inputs: Sequence[Path], out: Path, *, overwrite: bool = False, device: str = "auto"
) -> list[Path]:
    """Write a label map for every input, with the shape, affine and orientation of the input; returns the paths.

    run: a run directory, or a best.pt. inputs: image files, or folders of them. Names in `out` are those of the images.
    Label values are those of the training set. Raises ValueError for an input that cannot be read or has other channels
    than the network, and for an output that exists (unless `overwrite`), before anything is predicted.
    """
    content = read_checkpoint(run / CHECKPOINTS / "best.pt" if run.is_dir() else run)
    config = from_dict(content["config"], where=str(run))
    cases = [case for path in inputs for case in _cases(Path(path), len(content["channels"]))]
    targets = _targets(cases, out, overwrite)
    where = pick_device(device)
    network = _network(content, config, where)
    inference = inference_of(config, spatial_dims=content["spatial_dims"], device=where)
    values = sorted(int(value) for value in content["labels"])
    out.mkdir(parents=True, exist_ok=True)
    for case, target in zip(cases, targets, strict=True):
        volume = read_image(case)
        if volume.array.shape[0] != len(content["channels"]):
            raise ValueError(
                f"{case.image[0]}: has {volume.array.shape[0]} channels, the network was trained on "
                f"{len(content['channels'])} ({', '.join(content['channels'])})"
            )
        prepared = prepare_case(volume, None, id=case.id, spec=config.prepare)
        image = torch.from_numpy(prepared.image)
        [(_, label)] = infer_labels(network, [image], inference)
        restored = restore_label(label.cpu().numpy(), prepared.geometry, values)
        if is_picture(target):
            write_label_picture(target, restored)
        else:
            write_label_nifti(target, restored, volume.affine, like=case.image[0])
    return targets


def _network(content: dict[str, Any], config: RunConfig, device: torch.device) -> nn.Module:
    network = build_network(
        config.network,
        num_channels=len(content["channels"]),
        num_classes=len(content["labels"]),
        spatial_dims=content["spatial_dims"],
    )
    network.load_state_dict(content["weights"])
    layout = memory_format(content["spatial_dims"], bool(config.train.channels_last))
    return network.to(device).to(memory_format=layout).eval()  # type: ignore[call-overload, no-any-return]


def _cases(path: Path, num_channels: int) -> list[Case]:
    """Images of one input. In a folder, files that end in _0000, _0001, ... are the channels of one case (nnU-Net)."""
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder")
    files = list_files(path) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: holds no image files")
    if num_channels == 1 or not path.is_dir() or not all(stem(file)[-5:-4] == "_" for file in files):
        return [Case(id=stem(file), image=(file,)) for file in files]
    groups: dict[str, list[Path]] = {}
    for file in sorted(files):
        groups.setdefault(stem(file)[:-5], []).append(file)
    return [Case(id=name, image=tuple(group)) for name, group in groups.items()]


def _targets(cases: list[Case], out: Path, overwrite: bool) -> list[Path]:
    targets = [out / (f"{case.id}.png" if is_picture(case.image[0]) else f"{case.id}.nii.gz") for case in cases]
    if len(set(targets)) < len(targets):
        twice = next(target for target in targets if targets.count(target) > 1)
        raise ValueError(f"{twice.name}: two inputs would be written there; predict them into different --out folders")
    for case, target in zip(cases, targets, strict=True):
        if any(target.resolve() == image.resolve() for image in case.image):
            raise ValueError(f"{target}: is an input; choose another --out")
        if target.exists() and not overwrite:
            raise ValueError(f"{target}: exists; add --overwrite to replace it, or choose another --out")
    return targets
