"""Dice, IoU, HD95 and NSD of each class, as MONAI defines them: predicted label maps against their reference."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import torch

from hasten.cases.formats import read_file_header, stated_spacing
from hasten.cases.labels import distinct_values, read_label_values
from hasten.cases.types import Volume
from hasten.checkpoint.recorded_split import trained_on
from hasten.checkpoint.weights import model_file, run_of
from hasten.config.patterns import first_few, listing
from hasten.evaluation.dice import without_ignored
from hasten.evaluation.pairs import Pair, Pairs, find_pairs
from hasten.files import replacing
from hasten.observe.cores import usable_cores
from hasten.observe.folds import is_cross_validation
from hasten.observe.notebook import html_table
from hasten.observe.rundir import write_json
from hasten.prediction.outputs import recorded
from hasten.prepare.threads import one_torch_thread

log = logging.getLogger(__name__)

MEASURES = ("dice", "iou", "hd95", "nsd")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseScore:
    """One class, or region, of one case."""

    case: str
    name: str
    labelled: int
    """Voxels that the label map holds."""
    predicted: int
    dice: float
    """nan where neither holds the class, 0 where only one of them does; IoU and NSD alike."""
    iou: float
    hd95: float = math.nan
    """Distance in mm or px; inf where only one holds the class, nan where neither does or surfaces are not measured."""
    nsd: float = math.nan


def score_case(
    case: str,
    prediction: np.ndarray,
    label: np.ndarray,
    members: Mapping[str, Sequence[int]],
    *,
    spacing: tuple[float, float, float],
    tolerance: float = 1.0,
    surfaces: bool = True,
) -> list[CaseScore]:
    """A score for each of `members`: name of a class or region to the label values that belong to it.

    prediction, label: (D, H, W) label values of one grid. spacing: of it (D, H, W), in mm or px. tolerance: distance up
    to which NSD takes two surfaces for equal, in the same unit. surfaces: whether HD95 and NSD are measured.
    """
    assert prediction.shape == label.shape
    scores = []
    for name, values in members.items():
        predicted_mask, true_mask = (np.isin(array, list(values)) for array in (prediction, label))
        both, predicted, labelled = (
            int(np.count_nonzero(mask)) for mask in (predicted_mask & true_mask, predicted_mask, true_mask)
        )
        any_voxel = predicted + labelled > 0
        # From counts: MONAI's functions need one-hot volumes of float32, tens of times the memory for the same ratio.
        dice = 2 * both / (predicted + labelled) if any_voxel else math.nan
        iou = both / (predicted + labelled - both) if any_voxel else math.nan
        hd95, nsd = (math.nan, math.nan)
        if surfaces:
            hd95, nsd = surface_scores(predicted_mask, true_mask, spacing=spacing, tolerance=tolerance)
        scores.append(
            CaseScore(
                case=case, name=name, labelled=labelled, predicted=predicted, dice=dice, iou=iou, hd95=hd95, nsd=nsd
            )
        )
    return scores


def surface_scores(
    predicted_mask: np.ndarray, true_mask: np.ndarray, *, spacing: tuple[float, float, float], tolerance: float
) -> tuple[float, float]:
    """HD95, in the unit of `spacing`, and NSD of two masks (D, H, W) bool, by MONAI.

    One slice is measured in its plane.
    """
    if not predicted_mask.any() or not true_mask.any():
        neither = not predicted_mask.any() and not true_mask.any()
        return (math.nan, math.nan) if neither else (math.inf, 0.0)
    # Imported here, as MONAI takes seconds.
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    box = bounding_box(predicted_mask | true_mask)
    masks = [torch.from_numpy(np.ascontiguousarray(mask[box]))[None, None] for mask in (predicted_mask, true_mask)]
    lengths: Sequence[float] = spacing
    if 1 in predicted_mask.shape:
        across = predicted_mask.shape.index(1)
        masks, lengths = [mask.squeeze(2 + across) for mask in masks], [*spacing[:across], *spacing[across + 1 :]]
    with one_torch_thread():
        hd95 = compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=lengths)
        nsd = compute_surface_dice(*masks, class_thresholds=[tolerance], include_background=True, spacing=lengths)
    return float(hd95), float(nsd)


def bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box around a mask's voxels, with a voxel around it where the array has one; all of an empty mask.

    mask: bool, of any shape.
    """
    from scipy import ndimage

    (box,) = ndimage.find_objects(mask.view(np.uint8), 1)
    if box is None:
        return (slice(None),) * mask.ndim
    return tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)


EVALUATION_JSON, EVALUATION_CSV = "evaluation.json", "evaluation.csv"
Unit = Literal["mm", "px"]
SMALL_VOXEL = 0.01
"""Side in mm below which voxels are a microscope's, where NSD's tolerance of 1 mm would hold for all surfaces."""
Tick = Callable[[int, int, str], None]
"""Called with (cases done, cases in all, case) after each case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One measure of one class over the cases."""

    mean: float
    """Mean over the cases with a finite value; nan without any."""
    std: float
    """Standard deviation of a sample; nan of less than two values."""
    count: int
    """Cases that the mean is over."""
    empty: int
    """Cases that hold the class neither in the label map nor in the prediction, which are left out."""
    infinite: int
    """Cases left out of HD95, as only one of label map and prediction holds the class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """All scores of all cases, and their summary."""

    pairs: Pairs
    """What was compared."""
    scores: tuple[CaseScore, ...]
    unit: Unit
    """Unit of HD95 and of the tolerance of NSD."""
    tolerance: float
    surfaces: bool
    trained_on: dict[str, list[str]] = field(default_factory=dict)
    """Cases that the networks behind the predictions were trained on, with the runs of these."""

    @property
    def training_note(self) -> str:
        """How many cases are no test of the networks, as they were trained on them; "" if none is."""
        if not self.trained_on:
            return ""
        runs = list(dict.fromkeys(run for of_case in self.trained_on.values() for run in of_case))
        which = f"run {runs[0]}" if len(runs) == 1 else f"runs {first_few(runs)}"
        return (
            f"{len(self.trained_on)} of {len(self.cases)} cases were training cases of the {which}, so their scores do "
            "not tell how well other images are segmented"
        )

    def __repr__(self) -> str:
        return f"<Evaluation: mean Dice {self.mean():.4f}, cases: {len(self.cases)}>"

    def _repr_html_(self) -> str:
        rows = (
            (name, *(f"{self.summary(name, measure).mean:.4g}" for measure in self.measures)) for name in self.names
        )
        return html_table(("Class", *self.measures), rows, title=repr(self)[1:-1])

    @property
    def names(self) -> tuple[str, ...]:
        """Classes, and then regions."""
        return tuple(self.pairs.members)

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(score.case for score in self.scores))

    @property
    def measures(self) -> tuple[str, ...]:
        return MEASURES if self.surfaces else MEASURES[:2]

    def summary(self, name: str, measure: str) -> Summary:
        """Statistics of a class or region, for "dice", "iou", "hd95" or "nsd"."""
        return summary_of(self.values(name, measure))

    def values(self, name: str, measure: str) -> list[float]:
        """One measure of a class or region in each case; nan and infinity included."""
        return [getattr(score, measure) for score in self.scores if score.name == name]

    def case_means(self, measure: str = "dice") -> dict[str, float]:
        """Mean over the finite scores of each case's regions, or else classes; nan of a case without any."""
        by_case: dict[str, list[float]] = {case: [] for case in self.cases}
        main = set(self.pairs.main)
        for score in self.scores:
            if score.name in main:
                by_case[score.case].append(getattr(score, measure))
        return {case: summary_of(values).mean for case, values in by_case.items()}

    def mean(self, measure: str = "dice") -> float:
        """Mean of `case_means`."""
        return summary_of(list(self.case_means(measure).values())).mean

    def to_dict(self) -> dict[str, Any]:
        """The content of evaluation.json."""
        return {
            "predictions": str(self.pairs.predictions),
            "labels": str(self.pairs.source),
            "unit": self.unit,
            f"tolerance_{self.unit}": self.tolerance,
            "surfaces": self.surfaces,
            "cases": len(self.cases),
            "labelled_cases": self.pairs.num_labelled,
            "training_cases": self.trained_on,
            "mean": {measure: self.mean(measure) for measure in self.measures},
            "mean_over": self.pairs.main,
            "classes": {
                name: {measure: asdict(self.summary(name, measure)) for measure in self.measures} for name in self.names
            },
            "scores": [asdict(score) for score in self.scores],
        }


def summary_of(values: list[float]) -> Summary:
    finite = [value for value in values if math.isfinite(value)]
    return Summary(
        mean=mean(finite) if finite else math.nan,
        std=stdev(finite) if len(finite) > 1 else math.nan,
        count=len(finite),
        empty=sum(math.isnan(value) for value in values),
        infinite=sum(math.isinf(value) for value in values),
    )


def evaluate(
    predictions: str | Path,
    labels: str | Path,
    *,
    run: str | Path | None = None,
    tolerance_mm: float | None = None,
    surfaces: bool = True,
    num_workers: int | None = None,
    tick: Tick | None = None,
) -> Evaluation:
    """Dice, IoU, HD95 and NSD of each case and class, on the label maps' own voxels.

    Definitions are those of `monai.metrics`. Distances are in mm, or in px where label maps state no spacing, as
    pictures do not (`Evaluation.unit`). A class that neither label map nor prediction holds is nan and is left out
    of means, and counted; where only one of them holds it, Dice, IoU and NSD are 0 and HD95 is infinite. Voxels of an
    ignore label that the data set declares are background on both sides.

    Args:
        predictions: a folder of label maps.
        labels: a folder of label maps of the same names, or a data set that `train` takes, of which the predicted cases
            are used.
        run: a run directory or best.pt, which names the classes and regions; else the data set does, or a dataset.json
            beside the folder.
        tolerance_mm: distance up to which NSD takes surfaces for equal; in px where the label maps state no spacing.
            None: 1 mm or 1 px; 1 µm where every voxel is smaller than 10 µm, and 1 nm below 10 nm.
        surfaces: whether HD95 and NSD, which take most of the time, are measured.
        num_workers: cases at once, each in memory while it is scored; None takes the number of usable cores.
        tick: called as cases are scored.

    Raises:
        ValueError: one that lists every missing case, every case of another shape or affine, and label values that are
            not declared.

    Example:
        >>> scores = hasten.evaluate("predictions", "path/to/dataset")
        >>> mean_dice = scores.mean()
    """
    pairs = find_pairs(Path(predictions), Path(labels), Path(run) if run is not None else None)
    return evaluate_pairs(
        pairs, run=run, tolerance_mm=tolerance_mm, surfaces=surfaces, num_workers=num_workers, tick=tick
    )


def _trained_on(pairs: Pairs, run: str | Path | None) -> dict[str, list[str]]:
    """Training cases, as prediction.json says, by the images; and by the label maps of a run that is named."""
    by_name = recorded(pairs.predictions, "training_cases")
    found = {pair.case: by_name[pair.prediction.name] for pair in pairs.pairs if pair.prediction.name in by_name}
    if run is None or is_cross_validation(Path(run)):  # of which each case trains all folds but one
        return found
    labels = {pair.case: [pair.label] for pair in pairs.pairs}
    return {**trained_on([run_of(model_file(run))], labels, "label"), **found}


def evaluate_pairs(
    pairs: Pairs,
    *,
    run: str | Path | None = None,
    tolerance_mm: float | None = None,
    surfaces: bool = True,
    num_workers: int | None = None,
    tick: Tick | None = None,
) -> Evaluation:
    """`evaluate` for known pairs."""
    if tolerance_mm is not None and not (math.isfinite(tolerance_mm) and tolerance_mm >= 0):
        raise ValueError(f"tolerance_mm={tolerance_mm}: use a distance in mm, 0 or more")
    scores: list[CaseScore] = []
    failures: list[str] = []
    unit, tolerance = _unit_and_tolerance([pair.label for pair in pairs.pairs])
    tolerance = tolerance if tolerance_mm is None else tolerance_mm

    def one(pair: Pair) -> list[CaseScore] | str:
        try:
            prediction, label, affine = read_pair(pair, pairs)
            spacing = stated_spacing(pair.label, affine) if unit == "mm" else None
            prediction, label = without_ignored(prediction, label, pairs.ignore)
            return score_case(
                pair.case,
                prediction,
                label,
                pairs.members,
                spacing=spacing or (1.0, 1.0, 1.0),
                tolerance=tolerance,
                surfaces=surfaces,
            )
        except (ValueError, OSError) as error:
            return str(error)

    with warnings.catch_warnings(), ThreadPoolExecutor(num_workers or usable_cores()) as pool:
        # Of MONAI, about a call within MONAI.
        warnings.filterwarnings("ignore", message=".*always_return_as_numpy", category=FutureWarning)
        for number, (pair, result) in enumerate(zip(pairs.pairs, pool.map(one, pairs.pairs), strict=True), start=1):
            if isinstance(result, str):
                failures.append(result)
            else:
                scores += result
            if tick:
                tick(number, len(pairs.pairs), pair.case)
    if failures:
        raise ValueError(listing([failures], f"{len(failures)} of {len(pairs.pairs)} cases could not be evaluated"))
    evaluation = Evaluation(
        pairs=pairs,
        scores=tuple(scores),
        unit=unit,
        tolerance=tolerance,
        surfaces=surfaces,
        trained_on=_trained_on(pairs, run),
    )
    if evaluation.training_note:
        log.warning("%s", evaluation.training_note)
    return evaluation


def _unit_and_tolerance(labels: Sequence[Path]) -> tuple[Unit, float]:
    """The unit that distances of these label maps are measured in, px if any states no spacing, and NSD's default."""
    sizes = [_stated(path) for path in labels]
    without = [str(path) for path, size in zip(labels, sizes, strict=True) if size is None]
    if without and len(without) < len(labels):
        log.warning(
            "%d of %d label maps state no spacing (%s), so all distances are in px; store it in each file to have mm",
            len(without),
            len(labels),
            first_few(without),
        )
    largest = max((side for size in sizes for side in size or ()), default=1.0)
    if without or largest >= SMALL_VOXEL:
        return "px" if without else "mm", 1.0
    return "mm", 1e-3 if largest >= 1e-3 * SMALL_VOXEL else 1e-6


def _stated(path: Path) -> list[float] | None:
    """The sizes of a voxel in mm along the axes that are longer than one, as a file states them."""
    try:
        shape, _, affine = read_file_header(path)
        spacing = stated_spacing(path, affine)
    except (ValueError, OSError):
        return []  # who scores the case reads it again, and says what is wrong
    return None if spacing is None else [size for size, side in zip(spacing, shape, strict=True) if side > 1]


def read_pair(pair: Pair, pairs: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prediction and label map (D, H, W) of label values, and their affine (4, 4). Raises ValueError."""
    prediction = read_label_map(pair.prediction, pairs.labels)
    label = read_label_map(pair.label, pairs.labels, pairs.ignore)
    return prediction.array[0], label.array[0], label.affine


def read_label_map(path: Path, labels: dict[int, str], ignore: int | None = None) -> Volume:
    """A label map (1, D, H, W) of integers. Raises ValueError for channels, and values that are not declared.

    ignore: a further value that the map may hold.
    """
    volume = read_label_values(path, labels, ignore)
    if len(volume.array) != 1:
        raise ValueError(f"{path}: has {len(volume.array)} channels; store label maps as one channel of label values")
    unknown = sorted(set(distinct_values(volume.array).tolist()) - {*labels, ignore})
    if unknown:
        shown, declared = (", ".join(map(str, values)) for values in (unknown, sorted(labels)))
        raise ValueError(
            f"{path}: holds the label values {shown}, declared are {declared}; name the run that made the predictions, "
            "or correct the labels of the dataset.json"
        )
    return volume


def write_evaluation(evaluation: Evaluation, out: Path, settings: Sequence[str] = ()) -> None:
    """Write evaluation.csv, a row for each case and class, and evaluation.json, with the means, into the folder `out`.

    settings: of `infer`, with which the predictions were made instead of the run's own. In the JSON, null stands for
    nan and infinity alike; the CSV distinguishes them.
    """
    out.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["case", "class", "labelled_voxels", "predicted_voxels", *evaluation.measures, "unit"])
    for score in evaluation.scores:
        values = [f"{getattr(score, measure):.6g}" for measure in evaluation.measures]
        writer.writerow([score.case, score.name, score.labelled, score.predicted, *values, evaluation.unit])
    target = out / EVALUATION_CSV
    with replacing(target) as file:
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))
    write_json(out / EVALUATION_JSON, evaluation.to_dict() | ({"settings": list(settings)} if settings else {}))


def read_evaluation(pairs: Pairs) -> Evaluation | None:
    """What `write_evaluation` wrote into the folder of the predictions.

    None where nothing can be read, or it is of other cases or classes than the pairs are now.
    """
    try:
        tree = json.loads((pairs.predictions / EVALUATION_JSON).read_bytes())
        scores = tuple(CaseScore(**{**score, **_numbers(score, tree["surfaces"])}) for score in tree["scores"])
        of_pairs = {(pair.case, name) for pair in pairs.pairs for name in pairs.members}
        if {(score.case, score.name) for score in scores} != of_pairs:
            return None
        return Evaluation(
            pairs=pairs,
            scores=scores,
            unit=tree["unit"],
            tolerance=tree[f"tolerance_{tree['unit']}"],
            surfaces=tree["surfaces"],
            trained_on=tree["training_cases"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _numbers(score: dict[str, Any], surfaces: bool) -> dict[str, float]:
    """The measures of a score, whose null stands for nan, or for an HD95 that is infinite."""
    numbers = {measure: math.nan if score[measure] is None else score[measure] for measure in MEASURES}
    if surfaces and (score["labelled"] > 0) != (score["predicted"] > 0):
        numbers["hd95"] = math.inf
    return numbers
