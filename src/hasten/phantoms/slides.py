"""Phantom slides: stained tissue with nuclei and lesions of many sizes, as pyramidal TIFF with a mask of the lesions.

A slide is a pure function of (seed, index, size, mpp). Colour follows the Beer-Lambert law: haematoxylin (nuclei) and
eosin (the rest) take their share of red, green and blue light.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from hasten.phantoms.write import numbered, run_parallel

Compression = Literal["jpeg", "deflate", "none"]
_COMPRESSION = {"jpeg": "jpeg", "deflate": "adobe_deflate", "none": None}
_HAEMATOXYLIN, _EOSIN = (0.65, 0.70, 0.29), (0.07, 0.99, 0.11)
"""Light that is taken from red, green and blue; Ruifrok and Johnston, 2001."""
_TILE = 256
_EVERY_NORMAL, _EVERY_VALIDATION = 4, 3
"""Every 4th slide has no lesion; every 3rd is for validation."""
_DIAMETERS_UM = (90.0, 700.0)
"""Diameters of lesions, drawn evenly on a logarithmic scale."""


class _Cells(NamedTuple):
    """How the nuclei of a kind of tissue look."""

    spacing_um: float
    radius_um: tuple[float, float]
    darkness: tuple[float, float]


_STROMA = _Cells(24.0, (2.4, 3.6), (0.7, 1.2))
_LYMPH = _Cells(9.5, (2.0, 3.2), (0.9, 1.6))
_LESION = _Cells(11.5, (2.6, 4.4), (0.9, 1.7))


def make_phantom_slide(
    index: int, *, size: tuple[int, int] = (2048, 2048), mpp: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Level 0 of one slide, (H, W, 3) uint8, and its lesions, (H, W) uint8 0 or 1.

    mpp: micrometres that a pixel is long. Every 4th slide has no lesion; normal tissue holds crowds of small lymph
    cells, so that darkness alone does not identify a lesion. Raises ValueError for a size below 256 pixels.
    """
    if min(size) < _TILE or not 0.1 <= mpp <= 4:
        raise ValueError(f"phantom slide of {size} pixels, {mpp:g} um each: needs 256 or more, of 0.1 to 4 um")
    rng = np.random.default_rng((seed, index))
    tissue = np.zeros(size, bool)
    for _ in range(2):
        centre, radii = rng.uniform(0.35, 0.65, 2) * size, rng.uniform(0.28, 0.42, 2) * size
        tissue |= _blob(rng, size, centre, radii)
    lymph = np.zeros(size, bool)
    for _ in range(3):
        lymph |= _blob(rng, size, _inside(rng, tissue), np.full(2, rng.uniform(30, 110) / mpp))
    lesion = np.zeros(size, bool)
    for diameter in [] if index % _EVERY_NORMAL == _EVERY_NORMAL - 1 else _diameters(rng):
        most = min(diameter / mpp / 2, min(size) / 5)
        lesion |= _blob(rng, size, _inside(rng, tissue), most * rng.uniform(0.75, 1.25, 2))
    lesion &= tissue
    lymph &= tissue & ~lesion
    nuclei = np.zeros(size, np.float32)
    for cells, where in ((_STROMA, tissue & ~lymph & ~lesion), (_LYMPH, lymph), (_LESION, lesion)):
        _place(rng, nuclei, cells, where, mpp)
    eosin = 0.42 + 0.16 * _clouds(rng, size, 70 / mpp) + 0.07 * _clouds(rng, size, 9 / mpp)
    basal = np.where(lesion, 0.2, np.where(lymph, 0.2, 0.05)) + 0.04 * _clouds(rng, size, 40 / mpp)
    stain = rng.uniform(0.85, 1.15, 2)
    dense = np.stack([(nuclei + basal) * stain[0], eosin * stain[1]]) * tissue
    absorbed = np.tensordot(np.clip(dense, 0, None), np.array([_HAEMATOXYLIN, _EOSIN]), axes=(0, 0))
    light = 244 * np.exp(-absorbed) + rng.standard_normal((*size, 3), np.float32) * 2.5
    return np.clip(light, 0, 255).astype(np.uint8), lesion.astype(np.uint8)


def write_phantom_slides(
    out: str | Path,
    *,
    num_cases: int = 12,
    shape: tuple[int, int, int] = (1, 2048, 2048),
    mpp: float = 1.0,
    num_levels: int = 4,
    compression: Compression = "jpeg",
    seed: int = 0,
    num_threads: int = 2,
) -> Path:
    """Write slides/, masks/ and slides.csv (slide, mask, split) into `out`, and return it.

    Pyramidal TIFF of levels 1, 1/2, 1/4 ..., tiles of 256 pixels; masks are compressed without loss. Every 3rd slide
    is for validation. Raises ValueError for impossible numbers.
    """
    if not 1 <= num_levels <= 8 or compression not in _COMPRESSION:
        raise ValueError(
            f"phantom slides: {num_levels} levels, compression {compression!r}; needs 1 to 8 levels and one of "
            f"{', '.join(_COMPRESSION)}"
        )
    out = Path(out)
    names = numbered("phantom", num_cases)
    for folder in ("slides", "masks"):
        (out / folder).mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        image, lesion = make_phantom_slide(index, size=shape[1:], mpp=mpp, seed=seed)
        write_pyramid(out / "slides" / f"{names[index]}.tif", image, num_levels, mpp, compression)
        write_pyramid(out / "masks" / f"{names[index]}.tif", lesion, num_levels, mpp, "deflate")

    run_parallel(write, num_cases, num_threads, out)
    with (out / "slides.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("slide", "mask", "split"))
        for index, name in enumerate(names):
            validation = index % _EVERY_VALIDATION == _EVERY_VALIDATION - 1
            rows.writerow((f"slides/{name}.tif", f"masks/{name}.tif", "validation" if validation else "train"))
    return out


def write_pyramid(path: Path, image: np.ndarray, num_levels: int, mpp: float, compression: Compression) -> None:
    """Write (H, W, 3) or (H, W) uint8 as tiled TIFF, each level half as large as the one before.

    Levels of colour are means of 2 x 2 pixels, those of a mask every other pixel.
    """
    import tifffile

    colour = image.ndim == 3
    with tifffile.TiffWriter(path) as file:
        for number, level in enumerate(_halves(image, num_levels)):
            per_cm = 1e4 / (mpp * 2**number)
            file.write(
                level,
                tile=(_TILE, _TILE),
                photometric="rgb" if colour else "minisblack",
                metadata=None,
                compression=_COMPRESSION[compression],
                subfiletype=1 if number else 0,
                resolution=(per_cm, per_cm),
                resolutionunit="CENTIMETER",
            )


def _halves(image: np.ndarray, num_levels: int) -> Iterator[np.ndarray]:
    for _ in range(num_levels):
        yield np.ascontiguousarray(image)
        even = image[: len(image) // 2 * 2, : image.shape[1] // 2 * 2]
        if image.ndim == 2:
            image = even[::2, ::2]
        else:
            parts = even.reshape(len(even) // 2, 2, even.shape[1] // 2, 2, 3).astype(np.uint16)
            image = ((parts.sum((1, 3)) + 2) // 4).astype(np.uint8)


def _diameters(rng: np.random.Generator) -> list[float]:
    """Diameters of the lesions of a slide, in um, the first one large enough to count."""
    low, high = np.log(_DIAMETERS_UM)
    diameters = np.exp(rng.uniform(low, high, rng.integers(1, 4)))
    diameters[0] = max(diameters[0], 320.0)
    return [float(each) for each in diameters]


def _inside(rng: np.random.Generator, tissue: np.ndarray) -> np.ndarray:
    """A pixel of the tissue."""
    rows, columns = np.nonzero(tissue[::8, ::8])
    at = rng.integers(len(rows))
    return np.array([rows[at], columns[at]]) * 8.0


def _blob(rng: np.random.Generator, size: tuple[int, int], centre: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """(H, W) bool: an ellipse with a wavy border."""
    y, x = (
        ((np.arange(side, dtype=np.float32) - at) / radius)
        for side, at, radius in zip(size, centre, radii, strict=True)
    )
    square = y[:, None] ** 2 + x[None] ** 2
    angle = np.arctan2(y[:, None], x[None])
    wave = sum(
        np.float32(rng.uniform(0.02, 0.16)) * np.sin(number * angle + np.float32(rng.uniform(0, 6.3)))
        for number in range(2, 6)
    )
    return np.asarray(square < (1 + wave) ** 2)


def _clouds(rng: np.random.Generator, size: tuple[int, int], cell: float) -> np.ndarray:
    """(H, W) float32 of about standard deviation 1, smooth over `cell` pixels."""
    knots = [max(2, round(side / cell)) + 1 for side in size]
    coarse = Image.fromarray(rng.standard_normal(knots, np.float32))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC))


def _place(rng: np.random.Generator, out: np.ndarray, cells: _Cells, where: np.ndarray, mpp: float) -> None:
    """Draw soft discs on a jittered grid where `where` is true."""
    spacing = cells.spacing_um / mpp
    rows, columns = (int(side / spacing) + 1 for side in out.shape)
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).reshape(-1, 2)
    centre = (grid + rng.uniform(0.1, 0.9, grid.shape)) * spacing
    radius = rng.uniform(*cells.radius_um, len(grid)) / mpp
    long = rng.uniform(1.0, 1.5, len(grid))
    dark = rng.uniform(*cells.darkness, len(grid))
    turn = rng.uniform(0, np.pi, len(grid))
    pixel = np.minimum(centre, np.array(out.shape) - 1).astype(int)
    selected = where[pixel[:, 0], pixel[:, 1]]
    reach = int(np.ceil(cells.radius_um[1] / mpp * 1.5)) + 1
    step = np.arange(-reach, reach + 1)
    dy, dx = (each.reshape(1, -1) for each in np.meshgrid(step, step, indexing="ij"))
    off = (centre - pixel)[selected]
    y, x = dy - off[:, :1], dx - off[:, 1:]
    cos, sin = (part[selected, None] for part in (np.cos(turn), np.sin(turn)))
    along, across = (y * cos + x * sin) / long[selected, None], y * sin - x * cos
    distance = np.hypot(along, across) - radius[selected, None]
    value = (np.clip(0.5 - distance, 0, 1) * dark[selected, None]).astype(np.float32)
    at_y, at_x = pixel[selected, :1] + dy, pixel[selected, 1:] + dx
    used = (value > 0) & (at_y >= 0) & (at_x >= 0) & (at_y < out.shape[0]) & (at_x < out.shape[1])
    np.maximum.at(out, (at_y[used], at_x[used]), value[used])
