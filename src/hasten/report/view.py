"""What `hasten view` shows: cases of a run with label and prediction, and patches as the network gets them.

Each page is one HTML file, whose slices can be paged through in a browser.
"""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hasten.cache.fingerprint import read_cases
from hasten.cases.formats import ending, is_picture, named_files
from hasten.cases.labels import IGNORED
from hasten.cases.picture import PICTURE_ENDINGS
from hasten.cases.read import read_image, read_label
from hasten.cases.regions import regions_of
from hasten.cases.sources import unnamed_channels
from hasten.cases.types import Case, CaseSet, Volume, is_flat
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.config.patterns import first_few
from hasten.config.scalings import scalings
from hasten.config.schema import RunConfig, Spacing
from hasten.evaluation.evaluate import score_case
from hasten.files import same_files
from hasten.kernels.use import triton_as
from hasten.observe.folds import refuse_cross_validation
from hasten.observe.rundir import RUN_YAML
from hasten.prediction.ensemble import Member
from hasten.prediction.predict import predict_cases
from hasten.prepare.orient import UNCHANGED, Flip, Permute, orient, orientation_of
from hasten.report import words
from hasten.report.html import write_template
from hasten.report.model import Key
from hasten.report.read import read_run
from hasten.report.slices import DIFFERENCE_KEYS, class_keys, png_uri
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import plan_run
from hasten.training.prepare_cases import arena_of

MOST_BYTES = 20_000_000
"""Size of a page at most."""
_REDUCTIONS = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 16), (32, 16))
"""What is embedded: every nth slice, every nth row and column; the first that fits into a page."""
_BYTES_A_VOXEL = 0.2
"""Bytes of a channel's voxel on the page, at least: reductions that are beyond the budget by that are not tried."""
_PERCENTILES = (0.5, 99.5)
"""Percentiles of an image that are shown black and white."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictured:
    """A volume as it is shown: axes from inferior to superior, from anterior to posterior, from right to left."""

    name: str
    image: np.ndarray
    """(C, D, H, W)."""
    spacing: tuple[float, float, float]
    axes: Sequence[dict[str, Any]]
    """Name (x, y or z of the file), index of the first slice in the file, and step to the next, of each axis."""
    maps: Mapping[str, np.ndarray]
    """Class indices (D, H, W) uint8 by what they are: label, prediction."""
    ranges: tuple[tuple[float, float], ...]
    """Values of each channel that are shown black and white."""
    anatomical: bool = True
    """Whether its sides are named and all its planes are shown: not where the file says nothing of them."""
    caption: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """A page. Volumes that are linked show the same slice."""

    title: str
    verdict: str
    volumes: Sequence[Pictured]
    channels: Sequence[str]
    classes: Sequence[Key]
    """Names and colours by class index; the background first."""
    colour: bool = False
    """Whether the three channels are red, green and blue."""
    ignored: bool = False
    """Whether label maps have voxels that are not annotated."""
    linked: bool = False
    notes: tuple[str, ...] = ()
    links: Sequence[tuple[str, str]] = ()
    """Names of other pages and their files; of this page none."""


def turned(
    name: str,
    image: np.ndarray,
    maps: Mapping[str, np.ndarray],
    permute: Permute,
    flip: Flip,
    *,
    spacing: tuple[float, float, float],
    ranges: Sequence[tuple[float, float]],
    caption: str = "",
) -> Pictured:
    """A volume (C, D, H, W) and its maps (D, H, W) in the file's order, turned; a single slice stays as it is.

    permute, flip: as `orientation_of` gives them for RAS. spacing: (D, H, W) of the file in mm.
    """
    flat = image.shape[1] == 1
    if flat:
        permute, flip = (0, 1, 2), (False, False, False)
    else:  # from RAS, whose rows run to anterior and whose columns run to the right
        flip = (flip[0], not flip[1], not flip[2])
    last = [side - 1 for side in image.shape[1:]]
    axes = [
        {"name": "zyx"[source], "first": last[source] if backwards else 0, "step": -1 if backwards else 1}
        for source, backwards in zip(permute, flip, strict=True)
    ]
    return Pictured(
        name=name,
        image=orient(image, permute, flip),
        maps={layer: orient(each, permute, flip) for layer, each in maps.items()},
        spacing=(spacing[permute[0]], spacing[permute[1]], spacing[permute[2]]),
        axes=axes,
        ranges=tuple(ranges),
        anatomical=not flat,
        caption=caption,
    )


def range_of(channel: np.ndarray) -> tuple[float, float]:
    """The values of a channel that are shown black and white: all of 8-bit ones, else its percentiles."""
    if channel.dtype == np.uint8:
        return 0.0, 255.0
    step = max(1, round((channel.size / 2e6) ** (1 / 3)))
    low, high = np.percentile(channel[tuple(slice(None, None, step) for _ in channel.shape)], _PERCENTILES).tolist()
    return low, high if high > low else low + 1


def write_viewer(page: Viewer, out: Path) -> Path:
    """Write the page to the file `out`, reduced until it has at most `MOST_BYTES`, and return it. Raises ValueError."""
    budget = MOST_BYTES * 0.98 - 60_000
    voxels = sum(volume.image.size for volume in page.volumes)
    for slices, sides in _REDUCTIONS:
        if _BYTES_A_VOXEL * voxels / (slices * sides**2) > budget:
            continue
        volumes = [_packed(volume, slices, sides) for volume in page.volumes]
        if len(json.dumps(volumes)) <= budget:
            break
    else:
        raise ValueError(f"{out}: {first_few([each.name for each in page.volumes])} are too large for a page")
    data = {
        "volumes": volumes,
        "channels": list(page.channels),
        "colour": page.colour,
        "classes": [asdict(key) for key in page.classes],
        "errors": [asdict(key) for key in DIFFERENCE_KEYS],
        "ignored": page.ignored,
        "linked": page.linked,
        "crosshair": not page.linked and page.volumes[0].anatomical,
    }
    parts = [f"one of {slices} slices"] * (slices > 1) + [f"one of {sides} rows and columns"] * (sides > 1)
    notes = (*page.notes, *([f"To keep the page below 20 MB it has {', '.join(parts)}."] if parts else []))
    return write_template("viewer.html.j2", out, page=page, notes=notes, data=data)


def _packed(volume: Pictured, slices: int, sides: int) -> dict[str, Any]:
    steps = (slices if volume.image.shape[1] > 1 else 1, sides, sides)
    thinned = tuple(slice(None, None, step) for step in steps)
    channels = [channel[thinned] for channel in volume.image]
    maps = {layer: array[thinned] for layer, array in volume.maps.items()}
    shape = channels[0].shape
    at = [size // 2 for size in shape]
    filled = next((array > 0 for array in maps.values() if array.any()), None)
    if filled is not None:  # along each axis the slice that holds most of it
        at = [int(filled.sum(tuple({0, 1, 2} - {axis})).argmax()) for axis in range(3)]
    return {
        "name": volume.name,
        "caption": volume.caption,
        "shape": shape,
        "mm": [size * each for size, each in zip(volume.image.shape[1:], volume.spacing, strict=True)],
        "axes": [axis | {"step": axis["step"] * step} for axis, step in zip(volume.axes, steps, strict=True)],
        "at": at,
        "anatomical": volume.anatomical,
        "planes": ["axial", "coronal", "sagittal"] if volume.anatomical else ["axial"],
        "values": [list(each) for each in volume.ranges],
        "channels": [_pngs(_greys(*each)) for each in zip(channels, volume.ranges, strict=True)],
        **{layer: _pngs(array) for layer, array in maps.items()},
    }


def _greys(channel: np.ndarray, limits: tuple[float, float]) -> Iterator[np.ndarray]:
    """The slices of a channel (D, H, W) in values from 0 to 255."""
    low, high = limits
    for plane in channel:
        yield np.rint(((plane.astype(np.float32) - low) / (high - low)).clip(0, 1) * 255).astype(np.uint8)


def _pngs(planes: Iterable[np.ndarray]) -> list[str]:
    return [png_uri(Image.fromarray(np.ascontiguousarray(plane))) for plane in planes]


_PATCHES = 8
"""Patches of a page at least, where batches are smaller, and twice as many at most."""
_CONVENTION = (
    "Axial slices have anterior at the top, coronal and sagittal ones superior; on the left is the patient's right, in "
    "sagittal slices anterior. x, y and z are the file's voxels, from 0. Arrow keys move the slice of the plane that "
    "was clicked last."
)


def write_case_pages(
    run: Path,
    names: Sequence[str],
    out: Path,
    *,
    predictions: Path | None = None,
    device: str | None = None,
    trust_changed_code: bool = False,
    tick: Callable[[int, int, Path], None] | None = None,
) -> list[Path]:
    """A page CASE.html in the folder `out` for each case; returns their paths.

    names: of cases, which may also be those that the run was trained on; none takes the worst, the median and the best
    of the last validation. predictions: folder of label maps named after the cases; None predicts with the run's best
    weights. device, trust_changed_code, tick: as `predict` takes them.
    Raises ValueError.
    """
    refuse_cross_validation(run)
    if not (run / RUN_YAML).is_file():
        raise ValueError(
            f"{run}: holds no run ({RUN_YAML} is missing); name the folder of a training run, or add --batch"
        )
    config = load_run(run / RUN_YAML)
    case_set, train, validation = read_cases(config)
    examples = () if names else read_run(run).examples
    ranks = {each.name: each.which and f"{each.which} of the last validation, " for each in examples}
    cases = _chosen(case_set, names or list(ranks) or [case.id for case in validation[:3]], run)
    parts = {case.id: "training case" for case in train} | {case.id: "validation case" for case in validation}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".view") as scratch:
        if predictions is not None:
            paths, source = dict(named_files(predictions)), str(predictions)
        else:
            written = predict_cases(
                [Member(model_file(run), read_model(run))],
                cases,
                Path(scratch),
                device=device or config.train.device,
                trust_changed_code=trust_changed_code,
                tick=tick,
            )
            paths, source = {case.id: path for case, path in zip(cases, written, strict=True)}, "its best weights"
        without = [case.id for case in cases if case.id not in paths]
        if without:
            raise ValueError(f"{predictions}: holds no prediction of {first_few(without)}; name another --predictions")
        if same := same_files([out / f"{case.id}.html" for case in cases]):
            raise ValueError(f"{same[0]}: two cases have this name here; give each its own --out")
        pages = []
        for case in cases:
            links = [(each.id, "" if each is case else f"{each.id}.html") for each in cases] if len(cases) > 1 else []
            which = f"{ranks.get(case.id, '')}{parts.get(case.id, 'case that the run left out')}"
            page = _case_page(case, case_set, config, paths[case.id])
            about = f"{run.resolve().name}: {which}; prediction by {source}. {page.verdict}"
            page = replace(page, verdict=about, links=links)
            pages.append(write_viewer(page, out / f"{case.id}.html"))
    return pages


def _chosen(case_set: CaseSet, names: Sequence[str], run: Path) -> list[Case]:
    cases = {case.id: case for case in case_set.cases}
    for name in names:
        if name not in cases:
            near = " or ".join(difflib.get_close_matches(name, cases, n=3, cutoff=0.0))
            raise ValueError(
                f"{name}: is no case of {case_set.source}, which {run} was trained on; did you mean {near}?"
            )
    return [cases[name] for name in dict.fromkeys(names)]


def _case_page(case: Case, case_set: CaseSet, config: RunConfig, prediction: Path) -> Viewer:
    image = read_image(case)
    maps = {
        layer: read_label(replace(case, label=path), case_set.labels, image, case_set.ignore)
        for layer, path in (("label", case.label), ("prediction", prediction))
        if path is not None
    }
    shape = image.array.shape[1:]
    permute, flip = orientation_of(image.affine, "RAS", (shape[0], shape[1], shape[2]))
    volume = turned(
        case.id,
        image.array,
        maps,
        permute,
        flip,
        spacing=image.spacing,
        ranges=_ranges(image.array, config),
    )
    dice = _dice(case, case_set, maps, image) if case.label is not None else {}
    counted = [dice[name] for name in case_set.regions or dice if name in dice]  # as the run's own mean
    mean = f"Mean Dice {words.score(float(np.mean(counted)))}. " if counted else ""
    lengths = _times(*(f"{mm:.3g}" for mm in image.spacing[::-1]))
    flat = f"{_times(*(side for side in shape[::-1] if side > 1))} pixels"
    size = f"{_times(*shape[::-1])} voxels (x, y, z) of {lengths} mm" if not is_flat(shape) else flat
    return Viewer(
        title=case.id,
        verdict=f"{mean}{size}.",
        volumes=[volume],
        channels=_channels(case_set, case),
        classes=_classes(case_set, dice),
        colour=_is_colour(case_set, case),
        ignored=case_set.ignore is not None,
        notes=(
            "With label and prediction both on, the label is an outline.",
            *([_CONVENTION] if not is_flat(shape) else []),
        ),
    )


def _times(*sides: object) -> str:
    return f"{words.NBSP}×{words.NBSP}".join(map(str, sides))


def _ranges(array: np.ndarray, config: RunConfig) -> list[tuple[float, float]]:
    """Values of each channel shown black and white: the window of the run, if it has one."""
    windows = [scaling.window for scaling in scalings(config.prepare, len(array))] if config.prepare.intensity else []
    return [window or range_of(channel) for channel, window in zip(array, windows or [None] * len(array), strict=True)]


def _dice(case: Case, case_set: CaseSet, maps: Mapping[str, np.ndarray], image: Volume) -> dict[str, float]:
    """Dice of each foreground class and region on the image's own voxels, without those that neither map holds."""
    members: dict[str, tuple[int, ...]] = {
        name: (index,) for index, (_, name) in enumerate(sorted(case_set.labels.items())) if index
    }
    members |= {region.name: region.members for region in regions_of(case_set)}
    label, prediction = (np.where(maps["label"] == IGNORED, 0, maps[layer]) for layer in ("label", "prediction"))
    scores = score_case(case.id, prediction, label, members, spacing=image.spacing, surfaces=False)
    return {each.name: each.dice for each in scores if not np.isnan(each.dice)}


def _classes(case_set: CaseSet, dice: Mapping[str, float] | None = None) -> list[Key]:
    """The legend, by class index."""
    (_, background), *others = sorted(case_set.labels.items())
    keys = class_keys(name for _, name in others)
    score = {name: f"Dice {value:.3f}" for name, value in (dice or {}).items()}
    return [Key(background, "#000000"), *(replace(key, detail=score.get(key.name, "")) for key in keys)]


def write_batch_page(config: RunConfig, out: Path) -> Path:
    """A page of the first patches of a run, with labels, as its batch program makes them; returns its path.

    Cases are prepared into the cache, as training does. Raises ValueError.
    """
    planned = plan_run(config)
    case_set, chain = planned.case_set, planned.config.augment
    spacing = planned.config.prepare.spacing
    spacing = spacing if spacing and all(spacing) else (1.0, 1.0, 1.0)
    volumes: list[Pictured] = []
    sizes: list[int] = []
    with triton_as(config.train.fused_kernels):
        program, _ = choose_program(planned, arena_of(planned), steps=1)
        while sum(sizes) < _PATCHES:
            batch = {key: value.cpu().numpy() for key, value in program(len(sizes)).items()}
            sizes.append(len(batch["image"]))
            for image, label in zip(batch["image"], batch["label"], strict=True):
                volumes.append(_patch(f"step {len(sizes) - 1}, patch {len(volumes)}", image, label, case_set, spacing))
    shown = volumes[: 2 * _PATCHES]
    sides = _times(*shown[0].image.shape[4 - case_set.spatial_dims :])
    volumetric = case_set.spatial_dims == 3
    axes = "voxels (D, H, W)" if volumetric else "pixels (H, W)"
    page = Viewer(
        title=f"Batches of {case_set.name}",
        verdict=f"{len(shown)} patches of the first {len(sizes)} steps, {sides} {axes} and {sizes[0]} in a batch, "
        f"augmented by {chain.chain or f'augment.preset={chain.preset}'}.",
        volumes=shown,
        channels=_channels(case_set, planned.train[0]),
        classes=_classes(case_set),
        colour=_is_colour(case_set, planned.train[0]),
        ignored=case_set.ignore is not None,
        linked=True,
        notes=(
            "Values and label maps are those that the network gets, after preparation and augmentation."
            + " All patches show the same slice." * volumetric,
        ),
    )
    return write_viewer(page, out)


def _patch(name: str, image: np.ndarray, label: np.ndarray, case_set: CaseSet, spacing: Spacing) -> Pictured:
    flat = (1,) * (3 - case_set.spatial_dims)
    image, label = (each.reshape(len(each), *flat, *each.shape[1:]) for each in (image.astype(np.float32), label))
    ranges = [range_of(channel) for channel in image]
    if len(image) == 3 and case_set.spatial_dims == 2:  # so that colours stay
        ranges = [range_of(image)] * 3
    patch = turned(
        name,
        image,
        {"label": label[0].astype(np.uint8)},
        *UNCHANGED,
        spacing=spacing,
        ranges=ranges,
        caption=f"mean {image.mean():z.2f}, {image.min():z.2f} to {image.max():z.2f}",
    )
    return replace(patch, anatomical=False)  # which may be flipped


def _channels(case_set: CaseSet, case: Case) -> tuple[str, ...]:
    """Names of the channels; of a picture in colour, which has none, its colours."""
    nameless = case_set.channels == unnamed_channels(3) and ending(case.image[0]) in PICTURE_ENDINGS
    return ("red", "green", "blue") if nameless and len(case.image) == 1 else case_set.channels


def _is_colour(case_set: CaseSet, case: Case) -> bool:
    return len(case_set.channels) == 3 and len(case.image) == 1 and is_picture(case.image[0])
