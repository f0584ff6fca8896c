"""Label maps for new images, each in its own geometry."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hasten.cases.read import read_image
from hasten.cases.regions import Region, paint, resolve_regions
from hasten.cases.types import Case, Volume
from hasten.config.load import from_dict
from hasten.config.schema import PrepareConfig, RunConfig
from hasten.config.settled import planned_run, undecided
from hasten.engine.ensemble import Ensemble, Member, joined, read_members
from hasten.engine.foreground import foreground_size, size_warning
from hasten.engine.infer import Inference, infer_on_grid
from hasten.engine.inputs import find_cases, listing
from hasten.engine.job import inference_of, pick_device
from hasten.engine.label_files import label_names, write_label
from hasten.engine.outputs import label_targets, make_folder, region_folders
from hasten.engine.own_network import model_network
from hasten.engine.postprocess import Cleanings, postprocessed, read_cleanings
from hasten.engine.regrid import thick_axis
from hasten.engine.step import memory_format
from hasten.prepare.case import prepare_case
from hasten.prepare.restore import restore_label
from hasten.prepare.types import Prepared

log = logging.getLogger(__name__)

Tick = Callable[[int, int, Path], None]
"""Called with (cases done, cases in all, label map written) after each case."""
_SETTLED = ("prepare.spacing", "prepare.intensity", "prepare.crop_foreground", "train.precision", "train.channels_last")
"""Further settings of a trained model that a plan or a measurement has decided."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A trained network and what its input and output mean."""

    network: nn.Module
    prepare: PrepareConfig
    inference: Inference
    channels: tuple[str, ...]
    values: tuple[int, ...]
    """Label value of each class index."""
    regions: tuple[Region, ...] = ()
    """Overlapping classes, one of the network's outputs each; empty where its outputs are the classes."""
    foreground: dict[str, float] = dataclasses.field(default_factory=dict)
    """How much of it training cases had, as `training_range` gives it."""


def predict(
    run: str | Path | Sequence[str | Path],
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    regions: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    postprocess: bool = True,
    tick: Tick | None = None,
) -> list[Path]:
    """Write a label map for every input, with the shape, affine and orientation of the input; returns the paths.

    Of a run with overlapping classes the label map is painted region after region. regions: write the mask of each,
    too, 0 and 1, in a folder of `out` named after the region.

    run: a run directory, or a best.pt; or the folder of a cross-validation, whose finished folds predict together, or
    several of these: the mean of their probabilities decides. postprocess: clean the label maps of a cross-validation
    as its postprocessing.yaml says. inputs: image files, or folders of them; `find_cases` says what they hold. Names
    in `out` are those of the cases with `ending`, or the one that `label_names` takes for None; label values are those
    of the training set. trust_changed_code: build a network of your own from its source as it is now, where that is
    not what the run was trained with, which is refused otherwise. resume: leave label maps alone that were written
    after the network's file; what is there under a final name is whole. Everything that names and headers can tell (a
    missing file, other channels, an output that exists without `overwrite`, that is an input or that two inputs share)
    is a ValueError before anything is predicted or written. An input whose voxels then prove unreadable does not stop
    the others: once they are written, one ValueError lists those that failed.
    """
    files = [Path(path) for path in ([inputs] if isinstance(inputs, (str, Path)) else inputs)]
    members = read_members(run)
    content = members[0].content
    cases = find_cases(files, content["channels"], content["spatial_dims"])
    cleanings = read_cleanings(run, content["labels"]) if postprocess else {}
    return predict_cases(
        members, cases, Path(out), overwrite=overwrite, resume=resume, regions=regions, ending=ending, device=device,
        trust_changed_code=trust_changed_code, cleanings=cleanings, tick=tick,
    )  # fmt: skip


def predict_cases(
    members: Sequence[Member],
    cases: Sequence[Case],
    out: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    regions: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    cleanings: Cleanings | None = None,
    tick: Tick | None = None,
) -> list[Path]:
    """As `predict`, of cases that are known. cleanings: what is done to the label maps."""
    folders = region_folders(members[0].content, out, where=str(members[0].where)) if regions else []
    targets = [out / name for name in label_names(cases, ending)]
    since = max(member.where.stat().st_mtime for member in members) if resume else None
    wanted = label_targets(targets, cases, folders, overwrite=overwrite, since=since)
    models = [
        load_model(member.content, where=str(member.where), device=device, trust_changed_code=trust_changed_code)
        for member in members
    ]
    model = models[0] if len(models) == 1 else _together(models, members[0].where)
    made = make_folder(out)
    for folder in folders:
        make_folder(folder)
    jobs = [(case, target) for case, target, is_wanted in zip(cases, targets, wanted, strict=True) if is_wanted]
    written, failures = 0, list[str]()
    for error, target in _predicted(jobs, model, folders, cleanings or {}):
        written += error is None
        failures += [error] if error is not None else []
        if tick and error is None:
            tick(len(cases) - len(jobs) + written + len(failures), len(cases), target)
    if made and not written:
        for folder in (*folders, out):
            with suppress(OSError):
                folder.rmdir()
    if failures:
        heading = f"{len(failures)} of {len(cases)} inputs could not be predicted"
        others = f" ({len(cases) - len(failures)} others are in {out})" if len(cases) > len(failures) else ""
        raise ValueError(f"{listing(failures, heading)}{others}")
    return targets


def _predicted(
    jobs: Sequence[tuple[Case, Path]], model: Model, folders: Sequence[Path], cleanings: Cleanings
) -> Iterator[tuple[str | None, Path]]:
    """Yield each label map as it is written, or with what is wrong with the input.

    The next input is read and prepared, and the last label map written, while the network works.
    """
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        following = reader.submit(_read, jobs[0][0], model.prepare) if jobs else None
        writing: tuple[Future[None], Path] | None = None
        for number, (case, target) in enumerate(jobs):
            assert following is not None
            try:
                volume, prepared = following.result()
            except (ValueError, OSError) as error:
                volume, reason = None, str(error)
            following = reader.submit(_read, jobs[number + 1][0], model.prepare) if number + 1 < len(jobs) else None
            if volume is None:
                yield reason if str(case.image[0].parent) in reason else f"{case.image[0]}: {reason}", target
                continue
            label, masks = _labelled(prepared, model, where=str(case.image[0]))
            if writing is not None:
                writing[0].result()
                yield None, writing[1]
            files = [(target, postprocessed(label, cleanings, volume.spacing))]
            files += [(folder / target.name, mask) for folder, mask in zip(folders, masks, strict=bool(folders))]
            writing = writer.submit(_write, files, volume, case), target
        if writing is not None:
            writing[0].result()
            yield None, writing[1]


def _read(case: Case, spec: PrepareConfig) -> tuple[Volume, Prepared]:
    volume = read_image(case)
    return volume, prepare_case(volume, None, id=case.id, spec=spec)


def _together(models: Sequence[Model], where: Path) -> Model:
    first = models[0]
    network = Ensemble([model.network for model in models], overlapping=first.inference.overlapping)
    inference = joined([model.inference for model in models], where)
    return dataclasses.replace(first, network=network.eval(), inference=inference)


def load_model(content: dict[str, Any], *, where: str, device: str = "auto", trust_changed_code: bool = False) -> Model:
    """The network of a best.pt's content, ready to predict. where: the file's path, for errors and `model_network`.

    Raises ValueError.
    """
    # A device goes through the configuration, which knows what may stand there.
    tree = {**content["config"], "train": {**content["config"]["train"], "device": device}}
    given = _on_device(from_dict(tree, where=where))
    unset = [*undecided(given), *(name for name in _SETTLED if attrgetter(name)(given) is None)]
    if unset:
        raise ValueError(f"{where}: is no model as Hasten writes it, as its config leaves open {', '.join(unset)}")
    config = planned_run(given)
    target, dims = torch.device(config.train.device), content["spatial_dims"]
    labels = {int(value): name for value, name in content["labels"].items()}
    regions = resolve_regions(
        {name: tuple(members) for name, members in content.get("regions", {}).items()},
        content.get("region_values", {}),
        labels,
        f"{where}: regions",
    )
    network = model_network(content, config, where=where, trust_changed_code=trust_changed_code)
    layout = memory_format(dims, bool(config.train.channels_last))
    return Model(
        network=network.to(target).to(memory_format=layout).eval(),  # type: ignore[call-overload]
        prepare=config.prepare,
        inference=inference_of(
            config, spatial_dims=dims, device=target, classes=len(regions or labels), overlapping=bool(regions)
        ),
        channels=tuple(content["channels"]),
        values=tuple(sorted(labels)),
        regions=regions,
        foreground=content.get("foreground", {}),
    )


def _on_device(config: RunConfig) -> RunConfig:
    """The settings with the device found; fp16 is a GPU's precision, which few CPUs have convolutions for."""
    device = pick_device(config.train.device)
    precision = "fp32" if device.type == "cpu" and config.train.precision == "fp16" else config.train.precision
    return dataclasses.replace(config, train=dataclasses.replace(config.train, device=str(device), precision=precision))


def _labelled(prepared: Prepared, model: Model, *, where: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """The label map on the image's own voxels, and the mask of each region there, 0 and 1.

    A foreground of a size that no training case comes near is told in a warning that begins with `where`.
    """
    geometry = prepared.geometry
    own = geometry.spacing
    sides = zip(own, geometry.crop_shape, geometry.shape, strict=True)
    depth, height, width = (mm * before / after for mm, before, after in sides)
    found = infer_on_grid(
        model.network, torch.from_numpy(prepared.image), geometry.crop_shape, model.inference,
        nearest=thick_axis((depth, height, width), own),
    ).cpu().numpy()  # fmt: skip
    label = paint(found, model.regions) if model.regions else found
    dims = model.inference.spatial_dims
    warning = size_warning(
        foreground_size(int(np.count_nonzero(label)), geometry.crop_shape, geometry, dims), model.foreground, dims
    )
    if warning is not None:
        log.warning("%s: %s", where, warning)
    masks = [restore_label(mask.astype(np.uint8), geometry, (0, 1)) for mask in found] if model.regions else []
    return restore_label(label, geometry, model.values), masks


def _write(files: Sequence[tuple[Path, np.ndarray]], volume: Volume, case: Case) -> None:
    for target, label in files:
        try:
            write_label(target, label, volume, case)
        except OSError as error:
            raise ValueError(
                f"{target}: cannot be written ({error.strerror}); free some space or choose another --out"
            ) from None
