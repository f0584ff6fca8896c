"""Evaluates a classifier: AUC and accuracy on tiles, FROC on whole slides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hasten.cases.slide import Slide
from hasten.cases.slide.grid import Grid
from hasten.cases.slide.listing import SlideCase
from hasten.evaluation.froc import Froc, FrocMetric
from hasten.evaluation.rocauc import ROCAUCMetric
from hasten.observe.rundir import write_json
from hasten.pathology.config import DetectionConfig
from hasten.pathology.detect import Detection, lesions_on, on_slide, suppress, write_detections
from hasten.pathology.heatmap import Scorer, heat_map, write_heat_map
from hasten.pathology.tiles import TileSet, open_case, tissue_grid

HEAT_MAPS = "heat_maps"
DETECTIONS_CSV = "detections.csv"
FROC_JSON = "froc.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TileResult:
    """Metrics on the validation tiles."""

    auc: float
    accuracy: float
    """Accuracy at a chance of 0.5, the mean of both classes."""
    loss: float

    def value(self, metric: str) -> float:
        """Value of `auc`, `accuracy` or `loss`."""
        return float(getattr(self, metric))

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl has of it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideResult:
    """Results on one slide."""

    id: str
    lesions: int
    """Number of lesions that count."""
    detections: int
    highest: float
    """Value of the heat map."""
    cells: int


def evaluate_tiles(scorer: Scorer, tiles: TileSet) -> TileResult:
    """AUC, balanced accuracy and mean loss of all tiles, without augmentation."""
    chance = scorer(tiles.image).double()
    label = tiles.label
    metric = ROCAUCMetric()
    metric(chance, label)
    correct = (chance > 0.5) == (label > 0)
    accuracy = torch.stack([correct[label == value].double().mean() for value in (0, 1)]).mean()
    loss = torch.nn.functional.binary_cross_entropy(chance, label.double())
    return TileResult(auc=float(metric.aggregate()), accuracy=float(accuracy), loss=float(loss))


def heat_map_grid(slide: Slide, config: DetectionConfig) -> Grid:
    """The cells of a slide's heat map. Raises ValueError as `tissue_grid`."""
    return tissue_grid(slide, config.tiles, config.detect.stride or max(1, config.tiles.size // 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """The heat map and the detections of a slide."""

    heat: np.ndarray
    """(rows, columns) float32, as from `heat_map`."""
    grid: Grid
    scores: np.ndarray
    """(N,) of the detections."""
    points: np.ndarray
    """(N, 2) int64 row and column on level 0."""

    def rows(self, name: str) -> list[Detection]:
        """Rows for `write_detections`."""
        return [(name, score, y, x) for score, (y, x) in zip(self.scores.tolist(), self.points.tolist(), strict=True)]


def scan(slide: Slide, name: str, scorer: Scorer, config: DetectionConfig, folder: Path) -> Scan:
    """The heat map of a slide, written into `folder`, and its detections."""
    grid = heat_map_grid(slide, config)
    heat = heat_map(slide, grid, scorer)
    write_heat_map(folder, name, heat, slide, grid)
    scores, cells = suppress(heat, threshold=config.detect.threshold, box=config.detect.box)
    return Scan(heat=heat, grid=grid, scores=scores, points=on_slide(cells, grid.cell))


def heat_map_cells(cases: Sequence[SlideCase], config: DetectionConfig) -> int:
    """Tiles that are scored for the heat maps of these slides."""
    cells = 0
    for case in cases:
        with open_case(case, config.data) as slide:
            cells += len(heat_map_grid(slide, config).cells)
    return cells


def evaluate_slides(
    scorer: Scorer, cases: Sequence[SlideCase], config: DetectionConfig, out: Path
) -> tuple[Froc | None, list[SlideResult], str]:
    """Heat maps of all slides and their detections into `out`; FROC of all, or None and the reason."""
    metric = FrocMetric(config.detect.rates)
    results: list[SlideResult] = []
    rows: list[Detection] = []
    for case in cases:
        with open_case(case, config.data) as slide:
            scanned = scan(slide, case.id, scorer, config, out / HEAT_MAPS)
            lesions, excluded, downsample = lesions_on(slide, case, config.detect)
        inside = np.minimum((scanned.points / downsample).astype(np.int64), np.array(lesions.shape) - 1)
        metric(scanned.scores, inside, lesions, excluded)
        rows += scanned.rows(case.id)
        results.append(
            SlideResult(
                id=case.id, lesions=int(lesions.max(initial=0)) - len(excluded), detections=len(scanned.scores),
                highest=float(scanned.heat.max()), cells=len(scanned.grid.cells),
            )
        )  # fmt: skip
    write_detections(out / DETECTIONS_CSV, rows)
    try:
        return metric.aggregate(), results, ""
    except ValueError as error:
        return None, results, str(error)


def write_froc(out: Path, froc: Froc | None, results: Sequence[SlideResult], why: str) -> dict[str, Any]:
    """froc.json: score, sensitivity at each rate, the curve, and each slide. Returns what it holds."""
    content: dict[str, Any] = {"score": None, "why": why, "slides": list(results)}
    if froc is not None:
        content = {
            "score": froc.score,
            "rates": froc.rates,
            "sensitivity": froc.sensitivity,
            "lesions": froc.lesions,
            "images": froc.images,
            "curve": {"false_positives_per_slide": froc.curve_rates, "sensitivity": froc.curve_sensitivity},
            "slides": list(results),
        }
    write_json(out / FROC_JSON, content)
    return content
