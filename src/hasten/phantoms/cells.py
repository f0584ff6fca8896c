"""Procedural 2-D microscopy of cells that touch, with their interiors labelled.

Touching neighbours are separated by a thin line of background, so that a network that blurs it loses IoU. With a
`filled` of 1 cells leave no room between them, as in electron microscopy of tissue. A phantom is a pure function of
(seed, index, shape, radius, filled).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from hasten.phantoms.write import numbered, run_parallel, smooth_field, write_json

_TILE = 3.0
"""A cell is looked for in a box of this many radii to each side."""
_LINE = 1.6
"""Half the width of the line between neighbours, in pixels."""
Cells = tuple[np.ndarray, np.ndarray, np.ndarray]


def make_cells(
    index: int, *, shape: tuple[int, int] = (768, 1024), radius: float = 26.0, filled: float = 0.55, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """One picture: image (H, W) uint8, label (H, W) uint8 with 1 inside a cell, 0 between cells and on their walls.

    radius: of a cell of middling size, in pixels. filled: share of places that hold a cell.
    Raises ValueError for a shape too small to hold cells.
    """
    if min(shape) < 16 or not 2 <= radius <= min(shape) or not 0 < filled <= 1:
        raise ValueError(
            f"cells in {shape} pixels, radius {radius}, filled {filled}: needs 16 pixels a side, a radius of 2 pixels "
            "to a side, and 0 < filled <= 1."
        )
    rng = np.random.default_rng((seed, index))
    nearest, second, owner, values = _nearest_cells(rng, shape, radius, filled)
    # Both distances are in radii of a cell: their difference is a distance to the wall between two.
    between = (second - nearest) * radius / 2
    inside = np.minimum((1 - nearest) * radius if filled < 1 else np.full(shape, np.inf, np.float32), between)
    label = (inside > _LINE).astype(np.uint8)
    return _picture(rng, inside, owner, nearest, values, radius), label


def write_cells(
    out: str | Path,
    *,
    num_cases: int = 24,
    shape: tuple[int, ...] = (768, 1024),
    radius: float = 26.0,
    filled: float = 0.55,
    value: int = 1,
    seed: int = 0,
    num_threads: int = 2,
) -> Path:
    """images/ and labels/ of them as 8-bit PNG, of `shape` (H, W) or (1, H, W), and labels.json; returns `out`.

    value: what a cell has in the label maps. Raises ValueError.
    """
    if not 1 <= value <= 255:
        raise ValueError(f"cells: value is {value}; needs 1 to 255.")

    out, names = Path(out), numbered("cells", num_cases)
    for folder in ("images", "labels"):
        (out / folder).mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        image, label = make_cells(index, shape=(shape[-2], shape[-1]), radius=radius, filled=filled, seed=seed)
        for folder, array in (("images", image), ("labels", label * np.uint8(value))):
            Image.fromarray(array).save(out / folder / f"{names[index]}.png", compress_level=1)

    run_parallel(write, num_cases, num_threads, out)
    write_json(out / "labels.json", {"0": "background", str(value): "cell"})
    return out


def _nearest_cells(
    rng: np.random.Generator, shape: tuple[int, int], radius: float, filled: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distance to the nearest and second cell, in their radii, the nearest cell's number, and a value of each cell.

    All (H, W) but the last, which is (number of cells, 3) in 0..1.
    """
    height, width = shape
    warp = [np.float32(0.16 * radius) * smooth_field(rng, shape, 0.8 * radius) for _ in range(2)]
    y = np.arange(height, dtype=np.float32)[:, None] + warp[0]
    x = np.arange(width, dtype=np.float32)[None, :] + warp[1]
    nearest, second = (np.full(shape, np.float32(1e3)) for _ in range(2))
    owner = np.zeros(shape, np.int32)
    places = _places(rng, shape, radius, filled)
    for number, (cy, cx) in enumerate(places):
        size = radius * rng.lognormal(0, 0.22)
        longer, turn = rng.uniform(1.0, 1.55), rng.uniform(0, np.pi)
        reach = _TILE * size * (1 if filled < 1 else 1.6)
        rows = slice(max(0, int(cy - reach)), max(0, int(cy + reach)))
        columns = slice(max(0, int(cx - reach)), max(0, int(cx + reach)))
        dy, dx = y[rows, columns] - np.float32(cy), x[rows, columns] - np.float32(cx)
        along = (dy * np.float32(np.sin(turn)) + dx * np.float32(np.cos(turn))) / np.float32(size * longer**0.5)
        across = (dy * np.float32(np.cos(turn)) - dx * np.float32(np.sin(turn))) / np.float32(size / longer**0.5)
        distance = np.sqrt(along * along + across * across)
        near, next_ = nearest[rows, columns], second[rows, columns]
        closer = distance < near
        np.minimum(next_, np.where(closer, near, distance), out=next_)
        owner[rows, columns][closer] = number
        np.minimum(near, distance, out=near)
    return nearest, second, owner, rng.uniform(0, 1, (len(places), 3)).astype(np.float32)


def _places(rng: np.random.Generator, shape: tuple[int, int], radius: float, filled: float) -> np.ndarray:
    """Centres (N, 2), jittered about a hexagonal grid that goes beyond the picture; cells are left out in patches."""
    step = 1.75 * radius
    rows, columns = (np.arange(-1, n / by + 2) for n, by in zip(shape, (step * 0.87, step), strict=True))
    grid = np.stack(np.meshgrid(rows * step * 0.87, columns * step, indexing="ij"), -1)
    grid[1::2, :, 1] += step / 2
    density = smooth_field(rng, grid.shape[:2], 3.0) + rng.normal(0, 0.6, grid.shape[:2])
    grid = grid + rng.normal(0, 0.17 * step, grid.shape)
    return grid[density <= np.quantile(density, filled)]


def _picture(
    rng: np.random.Generator,
    inside: np.ndarray,
    owner: np.ndarray,
    nearest: np.ndarray,
    values: np.ndarray,
    radius: float,
) -> np.ndarray:
    """Grey cytoplasm with grains, darker walls and nuclei, under an uneven lamp; (H, W) uint8."""
    shape = inside.shape
    grains, blur = smooth_field(rng, shape, 2.5), smooth_field(rng, shape, 0.35 * radius)
    soft = np.clip(inside / 2 + 0.5, 0, 1)
    wall = np.exp(-np.square((inside - 0.4) / np.float32(1.9)))
    body = 0.56 + np.float32(0.16) * (values[owner, 0] - 0.5) + 0.028 * grains + 0.02 * blur
    nucleus = np.clip((0.42 + 0.16 * values[owner, 1] + 0.05 * blur - nearest) * radius / 3, 0, 1)
    body -= nucleus * (0.10 + 0.10 * values[owner, 2] - 0.03 * grains)
    medium = 0.62 + 0.018 * blur + 0.012 * grains
    image = np.asarray(medium + soft * (body - medium), np.float32)
    image -= np.float32(0.30) * wall * (0.8 + 0.25 * blur.clip(-1.5, 1.5))
    lamp = 1 + 0.09 * smooth_field(rng, shape, 0.6 * max(shape))
    image *= lamp * np.float32(rng.uniform(0.88, 1.08))
    noise = rng.standard_normal((shape[0] + 1, shape[1] + 1), np.float32)
    # Shared by neighbouring pixels, as a camera's is after the lens.
    grain = (noise[1:, 1:] + noise[:-1, 1:] + noise[1:, :-1] + noise[:-1, :-1]) / 2
    image += np.float32(rng.uniform(0.03, 0.055)) * grain
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
