"""Label maps for new images, each in its own geometry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from hasten.cases.read import read_image
from hasten.cases.section import read_section_header
from hasten.cases.types import Case, Volume
from hasten.checkpoint.recorded_split import trained_on
from hasten.checkpoint.weights import run_of
from hasten.config.patterns import SHOWN, listing
from hasten.config.schema import PrepareConfig
from hasten.files import size_of
from hasten.prediction.ensemble import Member, read_members, with_infer
from hasten.prediction.inputs import find_cases
from hasten.prediction.label_files import label_names, write_label
from hasten.prediction.large_picture import segment_section
from hasten.prediction.model import Model, load_members, predict_labels
from hasten.prediction.outputs import (
    PREDICTION_JSON,
    deciding_settings,
    image_sizes,
    label_targets,
    make_folder,
    region_folders,
    scratch,
    write_errors,
    write_probabilities,
    write_settings,
    written_since,
)
from hasten.prediction.postprocess import Cleanings, postprocessed, postprocessed_masks, read_cleanings
from hasten.prepare.case import prepare_case
from hasten.prepare.types import PreparedCase
from hasten.runtime.core_follower import cores_followed
from hasten.runtime.device import current_device

log = logging.getLogger(__name__)

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
    regions: bool = False,
    probabilities: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    postprocess: bool = True,
    tick: Tick | None = None,
) -> list[Path]:
    """Write a label map for every input, with the shape, affine and orientation of the input.

    Args:
        run: a run directory, or a best.pt; or the folder of a cross-validation, whose finished folds predict together;
            or several of these: the mean of their probabilities decides.
        inputs: image files, or folders of them; `find_cases` says what they hold.
        out: folder. Names in it are those of the cases with `ending`; label values are those of the training set.
        overrides: settings of the section `infer` that differ from the run's, such as "infer.overlap=0.25".
        overwrite: replace what is there under a final name.
        resume: leave label maps alone that were written with the same networks and settings from the same images, as
            `out`/prediction.json says; what is there under a final name is whole.
        regions: of a run with overlapping classes write the mask of each, too, 0 and 1, in a folder of `out` named
            after the region. The label map is painted region after region.
        probabilities: write CASE.npz beside each label map, too, with `probabilities` (K, D, H, W) float16 on the
            image's voxels, before any post-processing, and their `classes`.
        ending: of the files' names; None takes the one of `label_names`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        trust_changed_code: build your own network from its current source, where that is not what the run was
            trained with, which is refused otherwise.
        postprocess: clean the label maps, and the masks of regions, as the postprocessing.yaml of the run or
            cross-validation says.
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
    members = with_infer(read_members(run), overrides)
    content = members[0].content
    cases = find_cases(files, content["channels"], content["spatial_dims"])
    cleanings = read_cleanings(run, content["labels"]) if postprocess else {}
    return predict_cases(
        members, cases, Path(out), overwrite=overwrite, resume=resume, regions=regions, probabilities=probabilities,
        ending=ending, device=device, trust_changed_code=trust_changed_code, cleanings=cleanings, tick=tick,
    )  # fmt: skip


def predict_cases(
    members: Sequence[Member],
    cases: Sequence[Case],
    out: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    regions: bool = False,
    probabilities: bool = False,
    ending: str | None = None,
    device: str = "auto",
    trust_changed_code: bool = False,
    cleanings: Cleanings | None = None,
    model: Model | None = None,
    tick: Tick | None = None,
) -> list[Path]:
    """`predict` for known cases. cleanings: what is done to the label maps. model: `members`, loaded."""
    folders = region_folders(members[0].content, out, where=str(members[0].where)) if regions else []
    targets = [out / name for name in label_names(cases, ending)]
    sections = _sections(cases, bool(cleanings), regions, probabilities)
    settings = deciding_settings(members, cleanings or {})
    since = written_since(out, settings, overwrite=overwrite) if resume else None
    files = [
        [target, *(folder / target.name for folder in folders), *([out / f"{case.id}.npz"] if probabilities else [])]
        for target, case in zip(targets, cases, strict=True)
    ]
    to_write = label_targets(files, cases, overwrite=overwrite, since=since, sizes=image_sizes(out))
    model = model or load_members(members, device=device, trust_changed_code=trust_changed_code)
    is_new = make_folder(out)
    wanted = [(target, case) for target, case, each in zip(targets, cases, to_write, strict=True) if each]
    images = {target.name: case.image for target, case in wanted}
    trained = trained_on([run_of(member.where) for member in members], images, "image")
    write_settings(out, settings, {name: size_of(image) for name, image in images.items()}, trained)
    for folder in folders:
        make_folder(folder)
    jobs = [(case, each) for case, each, is_wanted in zip(cases, files, to_write, strict=True) if is_wanted]
    ordinary = [job for job in jobs if job[0].id not in sections]
    written, failures = 0, list[str]()
    with current_device(model.inference.device), cores_followed(model.inference.device):
        for error, target in chain(
            _predicted(ordinary, model, cleanings or {}, regions=regions, probabilities=probabilities),
            _segmented([job for job in jobs if job[0].id in sections], model),
        ):
            written += error is None
            failures += [error] if error is not None else []
            if tick and error is None:
                tick(len(cases) - len(jobs) + written + len(failures), len(cases), target)
    if is_new and not written:
        (out / PREDICTION_JSON).unlink(missing_ok=True)
        for folder in (*folders, out):
            with suppress(OSError):
                folder.rmdir()
    if failures:
        heading = f"{len(failures)} of {len(cases)} inputs could not be predicted"
        others = f" ({len(cases) - len(failures)} others are in {out})" if len(cases) > len(failures) else ""
        raise ValueError(f"{listing([failures], heading)}{others}")
    return targets


def _predicted(
    jobs: Sequence[tuple[Case, Sequence[Path]]],
    model: Model,
    cleanings: Cleanings,
    *,
    regions: bool,
    probabilities: bool,
) -> Iterator[tuple[str | None, Path]]:
    """Yield each label map as it is written, or with what is wrong with the input.

    jobs: cases, and the files of each: its label map, the masks of `regions`, its `probabilities`. The next input is
    read and prepared, and the last label map written, while the network works.
    """
    unlike: tuple[list[Path], list[Path]] = ([], [])  # the images that caused each kind of warning
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
        following = reader.submit(_read, jobs[0][0], model.prepare) if jobs else None
        writing: list[tuple[Future[None], Path]] = []

        def written() -> Iterator[tuple[str | None, Path]]:
            for future, target in writing:
                error = future.exception()
                if error is not None and not isinstance(error, (ValueError, OSError)):
                    raise error
                yield None if error is None else str(error), target
            writing.clear()

        for number, (case, (target, *others)) in enumerate(jobs):
            assert following is not None
            this = following
            following = reader.submit(_read, jobs[number + 1][0], model.prepare) if number + 1 < len(jobs) else None
            chances = None
            try:
                volume, prepared = this.result()
                if probabilities:
                    chances = scratch(target.parent, (len(model.classes), *volume.array.shape[1:]))
                label, masks, warnings = predict_labels(prepared, model, probabilities=chances)
            except (ValueError, OSError) as error:
                yield from written()  # what came before is reported before
                yield _naming(case.image[0], error), target
                continue
            for images, warning in zip(unlike, warnings, strict=True):
                if warning is not None:
                    images.append(case.image[0])
                    if len(images) <= SHOWN:
                        log.warning("%s: %s", case.image[0], warning)
            yield from written()
            cleaned = postprocessed(label, cleanings, volume.spacing)
            maps = [cleaned, *(postprocessed_masks(masks, label, cleaned, model.members) if regions else [])]
            writes: list[Callable[[Path], None]] = [
                partial(write_label, label=each, volume=volume, case=case) for each in maps
            ]
            if chances is not None:
                writes.append(partial(write_probabilities, array=chances, classes=model.classes))
            writing.append((writer.submit(_write, list(zip([target, *others], writes, strict=True))), target))
        yield from written()
    for images in unlike:
        if len(images) > SHOWN:
            log.warning("%d more images are unlike the training cases as %s is", len(images) - SHOWN, images[SHOWN - 1])


def _sections(cases: Sequence[Case], cleaned: bool, regions: bool, probabilities: bool) -> set[str]:
    """The cases that are read in parts. Raises ValueError for options that need an image as a whole."""
    large = [case for case in cases if read_section_header(case.image[0]) is not None]
    for option, is_set in (("--regions", regions), ("--probabilities", probabilities)):
        if large and is_set:
            raise ValueError(f"{large[0].image[0]}: is too large for {option}, which needs it as a whole; leave it out")
    if large and cleaned:
        raise ValueError(
            f"{large[0].image[0]}: is too large for post-processing, which needs it as a whole; add --no-postprocessing"
        )
    several = next((case for case in large if len(case.image) > 1), None)
    if several is not None:
        raise ValueError(f"{several.image[0]}: is too large to be one of several files of a case; join its channels")
    return {case.id for case in large}


def _segmented(jobs: Sequence[tuple[Case, Sequence[Path]]], model: Model) -> Iterator[tuple[str | None, Path]]:
    for case, (target,) in jobs:
        path, error = case.image[0], None
        try:
            _write([(target, partial(segment_section, path, model=model))])
        except ValueError as reason:
            error = _naming(path, reason)
        yield error, target


def _naming(path: Path, error: Exception) -> str:
    """The text of an error, with the image in front unless it names a file beside it."""
    return str(error) if str(path.parent) in str(error) else f"{path}: {error}"


def _read(case: Case, spec: PrepareConfig) -> tuple[Volume, PreparedCase]:
    volume = read_image(case)
    return volume, prepare_case(volume, None, id=case.id, spec=spec)


def _write(files: Sequence[tuple[Path, Callable[[Path], None]]]) -> None:
    for target, write in files:
        with write_errors(target):
            write(target)
