"""Heat maps of slides, their detections by Camelyon16's rules, and their evaluation: AUC on tiles, FROC on slides."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn

from hasten.cases.slide import Slide
from hasten.cases.slide.annotation import read_lesions
from hasten.cases.slide.listing import SlideCase
from hasten.cases.slide.tissue import Grid
from hasten.observe.rundir import write_json
from hasten.pathology.config import DetectConfig, DetectionConfig
from hasten.pathology.tiles import TileSet, normalised, open_case, read_ahead, tissue_grid
from hasten.runtime.precision import autocast, memory_format, tensor_cores
from hasten.runtime.variant import Variant

Detection = tuple[str, float, int, int]
"""Slide, score, and row and column on level 0."""


def suppress(heat: np.ndarray, *, threshold: float, box: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,) values above the threshold, falling, and (N, 2) their rows and columns, no two in one box, by MONAI.

    The largest value is a detection, and the square of `box` values around it is left out; then the largest of the
    rest, and so on. heat: (H, W).
    """
    from monai.transforms import ProbNMS

    found = ProbNMS(prob_threshold=threshold, box_size=box)(heat.copy())
    return np.array([each[0] for each in found], heat.dtype), np.array([each[1:] for each in found], int).reshape(-1, 2)


def on_slide(cells: np.ndarray, cell: float) -> np.ndarray:
    """(N, 2) int64 row and column on level 0 of the middles of cells. cell: pixels of level 0 that one is long."""
    return ((cells + 0.5) * cell).astype(np.int64)


def lesions_of(
    mask: np.ndarray, pixel_um: float, *, grow_um: float = 75.0, itc_um: float = 200.0
) -> tuple[np.ndarray, list[int]]:
    """(H, W) int32, each lesion of a mask (H, W) bool with a number from 1 on; and the numbers that do not count.

    Camelyon16's rule: what lies within `grow_um` of each other is one lesion, so that the mask is grown by half of it
    before its pieces are numbered, holes filled. A lesion whose major axis is below `itc_um` and what it was grown by
    is isolated tumour cells: finding it is no error, and missing it neither. pixel_um: how long a pixel is.
    """
    grown = ndimage.distance_transform_edt(~mask) < grow_um / (2 * pixel_um) if mask.any() else mask
    labels, number = ndimage.label(ndimage.binary_fill_holes(grown), np.ones((3, 3)))
    axes = major_axes(labels, number)
    return labels, (np.flatnonzero(axes < (itc_um + grow_um) / pixel_um) + 1).tolist()


def major_axes(labels: np.ndarray, number: int) -> np.ndarray:
    """(number,) the major axis of the ellipse with the same second moments as each piece, in pixels.

    Pixels are points, so that a single one has length 0.
    """
    rows, columns = np.nonzero(labels)
    which = labels[rows, columns]

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(which, values, number + 1)[1:] / size

    size = np.bincount(which, minlength=number + 1)[1:]
    y, x = mean(rows.astype(float)), mean(columns.astype(float))
    dy, dx = rows - y[which - 1], columns - x[which - 1]
    yy, xx, xy = mean(dy * dy), mean(dx * dx), mean(dy * dx)
    return 4 * np.sqrt((yy + xx) / 2 + np.sqrt(((yy - xx) / 2) ** 2 + xy**2))


def lesions_on(slide: Slide, case: SlideCase, detect: DetectConfig) -> tuple[np.ndarray, list[int], float]:
    """Lesions of a slide's mask, as from `lesions_of`, and the size of a pixel of it in pixels of level 0.

    The lesions are (H, W) int32. Raises ValueError if the pixel size of the slide is not known.
    """
    level = slide.level_near(detect.mask_downsample)
    pyramid_level = slide.levels[level]
    if case.mask is None:
        return np.zeros((pyramid_level.height, pyramid_level.width), np.int32), [], pyramid_level.downsample
    if slide.mpp is None:
        raise ValueError(
            f"{slide.path}: does not state the size of its pixels, by which lesions are measured; set data.mpp to the "
            "micrometres of a pixel of level 0"
        )
    mask = read_lesions(case.mask, slide, level)
    rules = {"grow_um": detect.grow_um, "itc_um": detect.itc_um}
    return *lesions_of(mask, slide.mpp * pyramid_level.downsample, **rules), pyramid_level.downsample


def write_detections(path: Path, rows: Sequence[Detection]) -> None:
    """CSV with the columns slide, score, y and x."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("slide", "score", "y", "x"))
        writer.writerows((slide, f"{score:.6f}", y, x) for slide, score, y, x in rows)


_PICTURE = 640
"""Pixels that the longer side of a picture has, at least about."""
_HEAT = np.array((230, 20, 20), np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A trained classifier: tiles (B, 3, H, W) uint8 to chances (B,) float32, both on the host."""

    network: nn.Module
    """Network in evaluation mode and in the memory format of the variant."""
    variant: Variant
    device: torch.device
    batch_size: int
    threads: int

    @torch.no_grad()
    def __call__(self, tiles: Tensor) -> Tensor:
        layout = memory_format(2, self.variant.channels_last)
        parts = []
        for part in tiles.split(self.batch_size):
            image = normalised(part.to(self.device)).contiguous(memory_format=layout)
            with tensor_cores(self.device, self.variant.precision), autocast(self.device, self.variant.precision):
                logit = self.network(image)
            parts.append(logit.float().sigmoid()[:, 0])
        return torch.cat(parts).cpu() if parts else torch.zeros(0)


def heat_map(slide: Slide, grid: Grid, scorer: Scorer) -> np.ndarray:
    """(rows, columns) float32: the chance of each cell with tissue, 0 elsewhere. Tiles are read ahead by threads."""
    heat = np.zeros(grid.shape, np.float32)
    start, numbers = 0, np.arange(len(grid.cells))
    # Each thread reads a part of a batch, so that the first batch does not wait for a single thread.
    size = max(1, scorer.batch_size // scorer.threads)
    for tiles in read_ahead(slide, grid, numbers, size=size, threads=scorer.threads):
        rows, columns = grid.cells[start : start + len(tiles)].T
        heat[rows, columns] = scorer(torch.from_numpy(tiles)).numpy()
        start += len(tiles)
    return heat


HEAT_MAP_ENDINGS = (".npy", ".json", ".png")
"""Suffixes of the files that `write_heat_map` writes."""


def write_heat_map(folder: Path, name: str, heat: np.ndarray, slide: Slide, grid: Grid) -> None:
    """Write NAME.npy with the values, NAME.json with their position on the slide, and NAME.png as a preview.

    heat: (rows, columns), as from `heat_map`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", heat)
    about = {
        "slide": slide.path.name,
        "backend": slide.backend,
        "level": grid.level,
        "downsample": grid.downsample,
        "tile": grid.tile,
        "stride": grid.stride,
        "cell": grid.cell,
        "mpp": slide.mpp,
        "shape": list(grid.shape),
        "cells_with_tissue": len(grid.cells),
        "size": [slide.levels[0].height, slide.levels[0].width],
    }
    write_json(folder / f"{name}.json", about)
    _picture(slide, grid, heat).save(folder / f"{name}.png")


def _picture(slide: Slide, grid: Grid, heat: np.ndarray) -> Image.Image:
    """The slide in grey, and red over it where lesions are likely."""
    scale = max(1, round(_PICTURE / max(grid.shape)))
    height, width = (scale * side for side in grid.shape)
    level = slide.level_near(grid.cell / scale)
    covered = [round(side * grid.cell / slide.levels[level].downsample) for side in grid.shape]
    grey = Image.fromarray(slide.read_region(level, 0, 0, *covered)).convert("L").resize((width, height))
    base = np.repeat(np.asarray(grey, np.float32)[..., None], 3, axis=2)
    share = np.kron(heat, np.ones((scale, scale), np.float32))[..., None] * 0.75
    return Image.fromarray((base * (1 - share) + _HEAT * share).astype(np.uint8))


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


def evaluate_tiles(scorer: Scorer, tiles: TileSet) -> TileResult:
    """AUC, balanced accuracy and mean loss of all tiles, without augmentation."""
    from monai.metrics import compute_roc_auc

    chance = scorer(tiles.image).cpu().double()
    label = tiles.label.cpu()
    correct = (chance > 0.5) == (label > 0)
    accuracy = torch.stack([correct[label == value].double().mean() for value in (0, 1)]).mean()
    loss = torch.nn.functional.binary_cross_entropy(chance, label.double())
    return TileResult(auc=float(compute_roc_auc(chance, label.double())), accuracy=float(accuracy), loss=float(loss))


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


def evaluate_slides(scorer: Scorer, cases: Sequence[SlideCase], config: DetectionConfig, out: Path) -> dict[str, Any]:
    """Heat maps of all slides, their detections and froc.json into `out`; what froc.json holds.

    MONAI's free-response ROC, whose `score` is None, with a reason in `why`, where no lesion counts; and of each of
    `slides` the lesions that count, the detections, the highest value of the heat map and its cells with tissue.
    """
    from monai.metrics import compute_fp_tp_probs_nd

    results: list[dict[str, Any]] = []
    rows: list[Detection] = []
    false: list[np.ndarray] = []
    hits: list[np.ndarray] = []
    for case in cases:
        with open_case(case, config.data) as slide:
            scanned = scan(slide, case.id, scorer, config, out / HEAT_MAPS)
            lesions, excluded, downsample = lesions_on(slide, case, config.detect)
        inside = np.minimum((scanned.points / downsample).astype(np.int64), np.array(lesions.shape) - 1)
        of_slide = compute_fp_tp_probs_nd(scanned.scores, inside, lesions, excluded)
        false.append(np.asarray(of_slide[0]))
        hits.append(np.asarray(of_slide[1]))
        rows += scanned.rows(case.id)
        results.append(
            {
                "id": case.id,
                "lesions": of_slide[2],
                "detections": len(scanned.scores),
                "highest": float(scanned.heat.max()),
                "cells": len(scanned.grid.cells),
            }
        )
    write_detections(out / DETECTIONS_CSV, rows)
    content = {**froc_content(false, hits, [each["lesions"] for each in results]), "slides": results}
    write_json(out / FROC_JSON, content)
    return content


RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives per slide at which Camelyon16 and LUNA16 take the sensitivity."""


def froc_content(false: Sequence[np.ndarray], hits: Sequence[np.ndarray], lesions: Sequence[int]) -> dict[str, Any]:
    """Score, sensitivity at each rate and the curve of all slides together, by MONAI.

    Of each slide, false: (F,) scores of false positives; hits: (L,) best score of each lesion, 0 if it was missed or
    does not count; lesions: the number of those that count.
    """
    from monai.metrics import compute_froc_curve_data

    total, slides = sum(lesions), len(lesions)
    if total == 0:
        return {"score": None, "why": f"none of the {slides} slides has a lesion that counts"}
    x, y = compute_froc_curve_data(np.concatenate(false), np.concatenate(hits), total, slides)
    sensitivity = np.interp(RATES, x[::-1], y[::-1])
    return {
        "score": float(sensitivity.mean()),
        "rates": list(RATES),
        "sensitivity": sensitivity.tolist(),
        "lesions": total,
        "images": slides,
        "curve": {"false_positives_per_slide": x, "sensitivity": y},
    }
