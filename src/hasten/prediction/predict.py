"""Label maps for new images, each in its own geometry: of files, and of arrays in memory."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hasten.cases.dicom import is_series
from hasten.cases.formats import is_picture, named_files, read_file_header, stem
from hasten.cases.read import check_finite, misplaced_files, read_image, warn_misplaced
from hasten.cases.types import Case, Volume, is_flat
from hasten.checkpoint.recorded_split import trained_on
from hasten.checkpoint.shared import run_paths
from hasten.checkpoint.weights import run_of
from hasten.config.patterns import SHOWN, listing
from hasten.config.schema import PrepareConfig
from hasten.files import size_of
from hasten.prediction.ensemble import Member, read_members, with_infer
from hasten.prediction.model import Model, load_members, predict_labels
from hasten.prediction.outputs import (
    PREDICTION_JSON,
    deciding_settings,
    label_names,
    label_targets,
    make_folder,
    recorded,
    scratch,
    write_errors,
    write_label,
    write_probabilities,
    write_settings,
    written_since,
)
from hasten.prediction.postprocess import Cleanings, postprocessed, read_cleanings
from hasten.prepare.case import prepare_case
from hasten.prepare.types import PreparedCase
from hasten.runtime.core_follower import cores_followed
from hasten.runtime.device import current_device

log = logging.getLogger(__name__)

_CHANNEL = re.compile(r"(.+)_\d{4}")


class _File(NamedTuple):
    path: Path
    shape: tuple[int, int, int]
    num_channels: int


def find_cases(inputs: Sequence[Path], channels: Sequence[str], spatial_dims: int) -> list[Case]:
    """The cases of image files, and of the image files in folders, in the order given and by name within a folder.

    Where the network takes several channels, files `NAME_0000`, `NAME_0001`, ... are the channels of the case NAME; a
    file that holds all the channels is a case by itself. Where every file of a folder, or every file that is named by
    itself, ends in `_0000`, that is taken off: so nnU-Net names cases of one channel. Raises one ValueError that lists
    every input whose header cannot be read, whose channels are not numbered from 0, or that has another number of
    channels or dimensions than the network was trained on.
    """
    files: list[_File] = []
    unreadable: list[str] = []
    named = {path: _listed(path) for path in inputs}
    names = _names([path for path, listed in named.items() if listed == [path]])
    for path, listed in named.items():
        names.update(_names(listed) if listed != [path] else {})
        for file in listed:
            try:
                files.append(_File(file, *read_file_header(file)[:2]))
            except ValueError as error:
                unreadable.append(str(error))
    groups: dict[tuple[Path, str], list[_File]] = {}
    for image in {image.path: image for image in files}.values():
        groups.setdefault(_case_of(image, len(channels), names), []).append(image)
    unfit = [_mismatch(name, group, channels, spatial_dims) for (_, name), group in groups.items()]
    problems = [unreadable, [problem for problem in unfit if problem]]
    count = sum(map(len, problems))
    if count:
        raise ValueError(listing(problems, f"{count} inputs can't be predicted, so nothing was written"))
    cases = [Case(id=name, image=tuple(sorted(image.path for image in group))) for (_, name), group in groups.items()]
    told: dict[Path, float] = {}
    for case in cases:
        if len(case.image) > 1:
            told |= misplaced_files(case, read_file_header(case.image[0]))
    warn_misplaced(told, "files", "the first image of their case")
    return cases


def _listed(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder; name an image, or a folder of images")
    files = [file for _, file in named_files(path)] if path.is_dir() and not is_series(path) else [path]
    if not files:
        raise ValueError(f"{path}: holds no image files; name an image, or a folder of images")
    return files


def _names(files: list[Path]) -> dict[Path, str]:
    """Shorter names where each file is a case of nnU-Net's, with its only channel."""
    if not all(stem(file).endswith("_0000") and len(stem(file)) > 5 for file in files):
        return {}
    return {file: stem(file)[:-5] for file in files}


def _case_of(file: _File, num_channels: int, names: dict[Path, str]) -> tuple[Path, str]:
    """The key of a case, and its name: files that hold one channel of several share both."""
    name = names.get(file.path, stem(file.path))
    part = _CHANNEL.fullmatch(name)
    return (file.path.parent, part[1]) if part and file.num_channels < num_channels else (file.path, name)


def _mismatch(name: str, group: list[_File], channels: Sequence[str], spatial_dims: int) -> str | None:
    """Why a case can't go through the network; None if it can."""
    first, count = group[0], sum(file.num_channels for file in group)
    if count != len(channels):
        several = f" and {len(group) - 1} more of case {name}" if len(group) > 1 else ""
        hint = f"; its files must end in _0000 to _{len(channels) - 1:04d}" if len(channels) > 1 else ""
        return (
            f"{first.path}{several}: {count} channel{'' if count == 1 else 's'}, but the network was trained on "
            f"{len(channels)} ({', '.join(channels)}); give every case those channels{hint}"
        )
    numbers = sorted(stem(file.path)[-4:] for file in group)
    wanted = [f"{number:04d}" for number in range(len(group))]
    if len(group) > 1 and numbers != wanted:
        return (
            f"{first.path}: the files of case {name} end in {', '.join(numbers)}, but channels are counted from 0 "
            f"({', '.join(wanted)}); rename them in the order {', '.join(channels)}"
        )
    flat = is_flat(first.shape)
    # A volume of one slice (D) may go through a 3-D network; a picture lies nowhere in space.
    deep = not is_picture(first.path) and (not flat or first.shape[0] == 1)
    if not (flat if spatial_dims == 2 else deep):
        kind = "2-D picture" if flat else "3-D image"
        return (
            f"{first.path}: a {kind} of shape {first.shape} (D, H, W), but the network was trained on "
            f"{spatial_dims}-D images; leave it out"
        )
    return None


Tick = Callable[[int, int, Path], None]
"""Called with (cases done, cases in all, label map written) after each case."""


def predict(
    run: str | Path | Sequence[str | Path],
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    resume: bool = False,
    probabilities: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    postprocess: bool = True,
    tick: Tick | None = None,
) -> list[Path]:
    """Write a label map for every input, with the shape, affine and orientation of the input.

    Args:
        run: a run directory, a best.pt, a shared folder or hf://OWNER/NAME; or the folder of a cross-validation, whose
            finished folds predict together; or several of these: the mean of their probabilities decides.
        inputs: image files, or folders of them; `find_cases` says what they hold.
        out: folder. Names in it are those of the cases with `ending`; label values are those of the training set.
        overrides: settings of the section `infer` that differ from the run's, such as "infer.overlap=0.25".
        overwrite: replace what is there under a final name.
        resume: leave label maps alone that were written with the same networks and settings from the same images, as
            `out`/prediction.json says; what is there under a final name is whole.
        probabilities: write CASE.npz beside each label map, too, with `probabilities` (K, D, H, W) float16 on the
            image's voxels, before any post-processing, and their `classes`.
        ending: of the files' names; None takes the one of `label_names`.
        device: as `train.device`.
        trust_changed_code: build your own network from its current source, where that is not what the run was
            trained with, which is refused otherwise.
        postprocess: clean the label maps as the postprocessing.yaml of the run or cross-validation says.
        tick: called as cases are finished.

    Returns:
        The paths of the label maps.

    Raises:
        ValueError: for everything that names and headers can show (a missing file, other channels, an output that
            exists without `overwrite`, that is an input or that two inputs share), before anything is predicted or
            written. An input whose voxels then prove unreadable, or whose label map can't be written, does not stop
            the others: once they are written, one ValueError lists those that failed.

    Example:
        >>> paths = hasten.predict("runs/first", "path/to/dataset/imagesTr", "predictions")
    """
    files = [Path(path) for path in ([inputs] if isinstance(inputs, (str, Path)) else inputs)]
    run = run_paths(run)  # once, as what a name on the hub stands for may change
    members = with_infer(read_members(run), overrides)
    content = members[0].content
    cases = find_cases(files, content["channels"], content["spatial_dims"])
    cleanings = read_cleanings(run, content["labels"]) if postprocess else {}
    return predict_cases(
        members,
        cases,
        Path(out),
        overwrite=overwrite,
        resume=resume,
        probabilities=probabilities,
        ending=ending,
        device=device,
        trust_changed_code=trust_changed_code,
        cleanings=cleanings,
        tick=tick,
    )


def predict_cases(
    members: Sequence[Member],
    cases: Sequence[Case],
    out: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    probabilities: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    cleanings: Cleanings | None = None,
    model: Model | None = None,
    tick: Tick | None = None,
) -> list[Path]:
    """`predict` for known cases. cleanings: what is done to the label maps. model: `members`, loaded."""
    settings = deciding_settings(members, cleanings or {})
    since = written_since(out, settings, overwrite=overwrite) if resume else None
    files = [
        [out / name, *([out / f"{case.id}.npz"] if probabilities else [])]
        for name, case in zip(label_names(cases, ending), cases, strict=True)
    ]
    to_write = label_targets(files, cases, overwrite=overwrite, since=since, sizes=recorded(out, "images"))
    jobs = [(case, each) for case, each, is_wanted in zip(cases, files, to_write, strict=True) if is_wanted]
    model = model or load_members(members, device=device, trust_changed_code=trust_changed_code)
    is_new = make_folder(out)
    images = {of_case[0].name: case.image for case, of_case in jobs}
    trained = trained_on([run_of(member.where) for member in members], images, "image")
    write_settings(out, settings, {name: size_of(image) for name, image in images.items()}, trained)
    written, failures = 0, list[str]()
    with current_device(model.inference.device), cores_followed(model.inference.device):
        for error, target in _predicted(jobs, model, cleanings or {}, probabilities=probabilities):
            written += error is None
            failures += [error] if error is not None else []
            if tick and error is None:
                tick(len(cases) - len(jobs) + written + len(failures), len(cases), target)
    if is_new and not written:
        (out / PREDICTION_JSON).unlink(missing_ok=True)
        with suppress(OSError):
            out.rmdir()
    if failures:
        heading = f"{len(failures)} of {len(cases)} inputs could not be predicted"
        others = f" ({len(cases) - len(failures)} others are in {out})" if len(cases) > len(failures) else ""
        raise ValueError(f"{listing([failures], heading)}{others}")
    return [of_case[0] for of_case in files]


def _predicted(
    jobs: Sequence[tuple[Case, Sequence[Path]]], model: Model, cleanings: Cleanings, *, probabilities: bool
) -> Iterator[tuple[str | None, Path]]:
    """Yield each label map as it is written, or with what is wrong with the input.

    jobs: cases, and the files of each: its label map, its `probabilities`. The next input is read and prepared, and the
    last label map written, while the network works.
    """
    unlike: tuple[list[Path], list[Path]] = ([], [])  # the images that caused each kind of warning
    with ThreadPoolExecutor(2) as pool:
        reads = (pool.submit(_read, case, model.prepare) for case, _ in jobs)
        following = next(reads, None)
        writing: tuple[Future[str | None], Path] | None = None
        for case, (target, *others) in jobs:
            assert following is not None
            this, following = following, next(reads, None)
            chances, failure = None, None
            try:
                volume, prepared = this.result()
                if probabilities:
                    chances = scratch(target.parent, (len(model.classes), *volume.array.shape[1:]))
                label, warnings = predict_labels(prepared, model, probabilities=chances)
            except (ValueError, OSError) as error:
                failure = str(error)
                if str(case.image[0].parent) not in failure:  # it may name a file beside the image
                    failure = f"{case.image[0]}: {failure}"
            if writing is not None:
                yield writing[0].result(), writing[1]
                writing = None
            if failure is not None:
                yield failure, target
                continue
            for images, warning in zip(unlike, warnings, strict=True):
                if warning is not None:
                    images.append(case.image[0])
                    if len(images) <= SHOWN:
                        log.warning("%s: %s", case.image[0], warning)
            cleaned = postprocessed(label, cleanings, volume.spacing)
            writes: list[Callable[[Path], None]] = [partial(write_label, label=cleaned, volume=volume, case=case)]
            if chances is not None:
                writes.append(partial(write_probabilities, array=chances, classes=model.classes))
            writing = pool.submit(_write, list(zip([target, *others], writes, strict=True))), target
        if writing is not None:
            yield writing[0].result(), writing[1]
    for images in unlike:
        if len(images) > SHOWN:
            more = "1 more image is" if len(images) == SHOWN + 1 else f"{len(images) - SHOWN} more images are"
            log.warning("%s unlike the training cases as %s is", more, images[SHOWN - 1])


def _read(case: Case, spec: PrepareConfig) -> tuple[Volume, PreparedCase]:
    volume = read_image(case)
    return volume, prepare_case(volume, None, id=case.id, spec=spec)


def _write(files: Sequence[tuple[Path, Callable[[Path], None]]]) -> str | None:
    """What is wrong where a file can't be written."""
    try:
        for target, write in files:
            with write_errors(target):
                write(target)
    except ValueError as error:
        return str(error)
    return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Predictor:
    """A trained network that is called with arrays; `load_predictor` makes one."""

    model: Model
    cleanings: Cleanings
    """What is done to the label maps."""

    def __call__(
        self,
        array: Any,
        *,
        spacing: Sequence[float] | None = None,
        affine: Any = None,
        probabilities: bool = False,
    ) -> np.ndarray:
        """The label map of an image on its own voxels, in label values of the training set, as `hasten.predict` gives.

        array: (D, H, W), or (C, D, H, W) with the channels of the training; in 2-D (H, W) or (C, H, W). Any integer or
        float dtype, in the units of the training images; NumPy or whatever `numpy.asarray` takes. D, H, W are the z, y,
        x of a file: of nibabel's arrays, the transpose.

        affine: (4, 4), voxel index (x, y, z) to mm, as in nibabel; the array may lie in space in any way. spacing:
        (D, H, W) in mm, or in 2-D (H, W), of an array whose axes already lie as `prepare.orientation` says: with RAS,
        W to the right, H to the front, D upwards. One of the two is needed in 3-D; pixels of 2-D count as 1 mm.

        probabilities: return float32 (K, D, H, W), in 2-D (K, H, W), instead, before any post-processing: of the
        classes in the order of the label values, or of the regions. The label map has the highest class.

        Raises ValueError for other channels or dimensions, NaN or infinite voxels and an impossible spacing or affine.
        """
        image, where_known = self._image(array), affine is not None
        flat = self.model.inference.spatial_dims == 2
        if where_known == (spacing is not None) and (where_known or not flat):
            raise ValueError(f"spacing, affine: give one of them{', not both' if where_known else ''}")
        matrix = _affine(affine) if where_known else _of_spacing(spacing, flat)
        check_finite(image, "array")
        spec = self.model.prepare
        if not where_known:
            spec = dataclasses.replace(spec, orientation=None)
        volume = Volume(image, matrix)
        prepared = prepare_case(volume, None, id="array", spec=spec)
        chances = None
        if probabilities:
            chances = np.zeros((len(self.model.classes), *image.shape[1:]), np.float32)
        with current_device(self.model.inference.device):
            label, warnings = predict_labels(prepared, self.model, probabilities=chances)
        for warning in filter(None, warnings):
            log.warning("array: %s", warning)
        result = postprocessed(label, self.cleanings, volume.spacing) if chances is None else chances
        return result.squeeze(-3) if flat else result

    def _image(self, array: Any) -> np.ndarray:
        """(C, D, H, W)."""
        image, dims = np.asarray(array), self.model.inference.spatial_dims
        channels, axes = self.model.channels, "D, H, W" if dims == 3 else "H, W"
        if image.dtype.kind not in "iuf":
            raise ValueError(f"array: holds {image.dtype}; give integers or floats")
        if image.ndim == dims:
            image = image[None]
        if image.ndim != dims + 1 or 0 in image.shape:
            raise ValueError(f"array: its shape is {np.shape(array)}; give ({axes}) or (C, {axes}), with voxels")
        if len(image) != len(channels):
            raise ValueError(
                f"array: {len(image)} channel{'' if len(image) == 1 else 's'} (its shape is {np.shape(array)}), but "
                f"the network was trained on {len(channels)} ({', '.join(channels)}); give (C, {axes}) with these"
            )
        return image if dims == 3 else image[:, None]


def _affine(affine: Any) -> np.ndarray:
    matrix = np.asarray(affine, np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or np.linalg.matrix_rank(matrix[:3, :3]) < 3:
        raise ValueError(f"affine: {matrix.tolist()} maps no volume; give (4, 4), voxel index (x, y, z) to mm")
    return matrix


def _of_spacing(spacing: Sequence[float] | None, flat: bool) -> np.ndarray:
    if spacing is None:
        return np.eye(4)
    sides = np.asarray(spacing, np.float64)
    if sides.shape != ((2,) if flat else (3,)) or not (np.isfinite(sides) & (sides > 0)).all():
        axes = "(H, W)" if flat else "(D, H, W)"
        raise ValueError(f"spacing: {spacing} is no voxel spacing; give {axes} in mm, each above 0")
    return np.diag([*sides[::-1], *(1.0,) * (4 - len(sides))])


def load_predictor(
    run: str | Path | Sequence[str | Path],
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    trust_changed_code: bool = False,
    postprocess: bool = True,
) -> Predictor:
    """A trained network for arrays, loaded once.

    Args:
        run, overrides, device, trust_changed_code, postprocess: as `hasten.predict` takes them; so are the label maps.

    Returns:
        `predictor(array, spacing=(D, H, W))`, which gives a label map.

    Raises:
        ValueError: as `hasten.predict`.

    Example:
        >>> import nibabel
        >>> predictor = hasten.load_predictor("runs/first")
        >>> volume = nibabel.load("case.nii.gz").get_fdata().transpose(2, 1, 0)
        >>> label = predictor(volume, spacing=(1, 1, 1))
    """
    run = run_paths(run)
    members = with_infer(read_members(run), overrides)
    cleanings = read_cleanings(run, members[0].content["labels"]) if postprocess else {}
    model = load_members(members, device=device, trust_changed_code=trust_changed_code)
    return Predictor(model=model, cleanings=cleanings)
