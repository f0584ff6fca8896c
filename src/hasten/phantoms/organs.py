"""Procedural abdominal CT phantoms with a labelled spleen, for demonstrations, benchmarks and tests without a download.

A phantom is a pure function of (seed, index, shape, spacing): no file, thread or order of calls changes a voxel. Organs
are deformed ellipsoids, drawn at random for each case.

Places and sizes are in units of half the field of view, axes (z, y, x): z up to the head, y to the front, x to the
right, so the spleen lies at negative x, negative y (back) and positive z. Intensities are in HU, those of abdominal CT:
spleen, liver, kidney, muscle and bowel overlap on purpose, so that place and shape must be learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hasten.phantoms.write import numbered, write_volumes

LABELS = {0: "background", 1: "spleen"}
CAVITY = 0.80
"""Radius of the abdominal cavity, as a share of the body's."""
_AIR, _FAT, _INNER_FAT = -1000.0, -105.0, -95.0
_MARGIN = 1.9
"""Bounding boxes are this much larger than the undeformed ellipsoid."""
Axes = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Organ:
    """One deformed ellipsoid of smoothly varying intensity."""

    name: str
    centre: np.ndarray
    """(3,) in half fields of view."""
    radii: np.ndarray
    """(3,) in half fields of view, before the rotation."""
    rotation: np.ndarray
    """(3, 3) orthogonal, ellipsoid axes to (z, y, x)."""
    hu: float
    texture: float
    """Amplitude of the smooth variation inside, in HU."""
    waves: np.ndarray
    """(3, 4): per ellipsoid axis a frequency vector and a phase of the displacement along it."""
    bend: float
    """How far the ends of the first axis bend along the third, in radii: what makes a spleen a crescent."""
    wobble: float
    """Amplitude of the waves, in radii."""
    limit: float = CAVITY
    """The organ ends where the body's radius passes this share."""
    above: float | None = None
    """The y in front of which alone it is painted, as gas floats up in a patient on the back; None paints all of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anatomy:
    """One patient. The organs are painted in order; the last one, the spleen, overwrites all others."""

    body: np.ndarray
    """(2,) radii (y, x) of the body at mid height, in half fields of view."""
    body_phase: float
    muscle_hu: float
    bone_hu: float
    rib_phase: float
    noise_hu: float
    """Standard deviation of the CT noise."""
    organs: tuple[Organ, ...]

    @property
    def spleen(self) -> Organ:
        return self.organs[-1]


def make_phantom(
    index: int,
    *,
    shape: tuple[int, int, int] = (96, 256, 256),
    spacing: tuple[float, float, float] = (2.5, 1.0, 1.0),
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """One phantom: image (D, H, W) int16 in HU, label (D, H, W) uint8 with 1 the spleen.

    `spacing` (D, H, W) is in mm. The anatomy fills the field of view whatever its size; D = 1 gives the slice through
    the middle of the spleen. Raises ValueError for a shape too small to hold organs.
    """
    if not (shape[0] == 1 or shape[0] >= 8) or min(shape[1:]) < 16 or min(spacing) <= 0:
        raise ValueError(f"phantom shape {shape}, spacing {spacing}: needs D = 1 or >= 8, H, W >= 16, spacing above 0.")
    rng = np.random.default_rng((seed, index))
    anatomy = draw_anatomy(rng)
    axes = _axes(shape, anatomy)
    image = np.empty(shape, np.float32)
    rho, scale = _body_radius(axes, anatomy)
    for z in range(shape[0]):
        _paint_body(image[z], rho * scale[z], axes, z, anatomy)
    half_mm = np.array(shape) * np.array(spacing) / 2
    label = np.zeros(shape, np.uint8)
    for organ in anatomy.organs[:-1]:
        _paint_organ(image, organ, axes, half_mm, (rho, scale))
    _paint_organ(image, anatomy.spleen, axes, half_mm, (rho, scale), label)
    return _finish(image, rng, anatomy), label


def write_phantoms(
    out: str | Path,
    *,
    num_cases: int = 20,
    shape: tuple[int, int, int] = (96, 256, 256),
    spacing: tuple[float, float, float] = (2.5, 1.0, 1.0),
    seed: int = 0,
    num_threads: int = 2,
) -> Path:
    """Write a Decathlon folder of phantoms into `out`, as int16 NIfTI files, and return it.

    Raises ValueError for an impossible number or shape.
    """
    return write_volumes(
        Path(out),
        numbered("phantom", num_cases),
        lambda index: make_phantom(index, shape=shape, spacing=spacing, seed=seed),
        title="Procedural abdominal CT phantoms with a labelled spleen",
        channels=("CT",),
        labels=LABELS,
        spacing=spacing,
        num_threads=num_threads,
    )


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Draw one patient."""
    shift = float(rng.normal(0, 10))
    kidney_left = _organ(rng, "kidney", (-0.08, -0.27, -0.29), (0.25, 0.11, 0.11), 38 + shift)
    kidney_right = _organ(rng, "kidney", (-0.16, -0.27, 0.29), (0.25, 0.11, 0.11), kidney_left.hu)
    stomach = _organ(rng, "stomach", (0.34, 0.15, -0.27), (0.26, 0.22, 0.21), 35 + shift)
    organs = [
        _organ(rng, "liver", (0.28, 0.03, 0.36), (0.50, 0.44, 0.40), 55 + shift, wobble=0.3),
        *_bowel(rng, 50 + shift),
        kidney_left,
        _core(kidney_left, rng),
        kidney_right,
        _core(kidney_right, rng),
        stomach,
        _gas(stomach, rng),
        _organ(rng, "aorta", (0.0, -0.24, -0.06), (2.5, 0.055, 0.055), 50 + shift, tilt=3),
        _organ(rng, "vena cava", (0.0, -0.22, 0.10), (2.5, 0.05, 0.065), 48 + shift, tilt=3),
        _organ(rng, "vessel", (0.22, -0.16, -0.26), (0.03, 0.04, 0.24), 50 + shift, tilt=12, wobble=0.4),
        _spleen(rng, 50 + shift),
    ]
    return Anatomy(
        body=np.array([rng.uniform(0.64, 0.74), rng.uniform(0.88, 0.95)]),
        body_phase=float(rng.uniform(0, 2 * np.pi)),
        muscle_hu=45 + shift + float(rng.normal(0, 3)),
        bone_hu=float(rng.uniform(300, 450)),
        rib_phase=float(rng.uniform(0, 2 * np.pi)),
        noise_hu=float(rng.uniform(20, 30)),
        organs=tuple(organs),
    )


def _spleen(rng: np.random.Generator, hu: float) -> Organ:
    centre = np.array([rng.uniform(0.18, 0.42), rng.uniform(-0.24, -0.06), rng.uniform(-0.55, -0.44)])
    radii = np.array([rng.uniform(0.28, 0.38), rng.uniform(0.20, 0.28), rng.uniform(0.14, 0.20)])
    touches_wall = rng.random() < 0.5
    return Organ(
        name="spleen",
        centre=centre,
        radii=radii,
        rotation=_rotation(rng, 20.0),
        hu=hu + float(rng.normal(0, 5)),
        texture=float(rng.uniform(2, 5)),
        waves=_waves(rng),
        bend=float(rng.uniform(0.0, 0.35)),
        wobble=float(rng.uniform(0.12, 0.25)),
        limit=CAVITY if touches_wall else CAVITY - 0.04,
    )


def _bowel(rng: np.random.Generator, hu: float) -> list[Organ]:
    """Loops below, some as large and as bright as the spleen, and one next to it."""
    loops = [_organ(rng, "colon", (-0.14, 0.20, -0.45), (0.13, 0.13, 0.12), hu)]
    for _ in range(2):
        place = (rng.uniform(-0.8, -0.6), rng.uniform(-0.15, 0.15), rng.uniform(-0.4, 0.4))
        size = (rng.uniform(0.16, 0.3), rng.uniform(0.18, 0.26), rng.uniform(0.14, 0.2))
        loops.append(_organ(rng, "bowel", place, size, hu, tilt=60))
    for _ in range(6):
        place = (rng.uniform(-0.95, -0.35), rng.uniform(-0.2, 0.4), rng.uniform(-0.5, 0.5))
        size = tuple(rng.uniform(0.05, 0.16, 3))
        loops.append(_organ(rng, "bowel", place, size, hu, tilt=90))
    return loops


def _organ(
    rng: np.random.Generator,
    name: str,
    centre: tuple[float, ...],
    radii: tuple[float, ...],
    hu: float,
    *,
    tilt: float = 15.0,
    wobble: float = 0.15,
) -> Organ:
    return Organ(
        name=name,
        centre=np.array(centre) + rng.normal(0, 0.025, 3),
        radii=np.array(radii) * rng.uniform(0.88, 1.12, 3),
        rotation=_rotation(rng, tilt),
        hu=hu + float(rng.normal(0, 5)),
        texture=float(rng.uniform(2, 5)),
        waves=_waves(rng),
        bend=float(rng.uniform(-0.2, 0.2)),
        wobble=wobble,
    )


def _core(organ: Organ, rng: np.random.Generator) -> Organ:
    """The fat in the middle of a kidney."""
    return _inside(organ, "kidney core", 0.45, float(rng.uniform(-80, -30)), None)


def _gas(stomach: Organ, rng: np.random.Generator) -> Organ:
    """The air pocket in the front part of the stomach."""
    level = float(stomach.centre[1] + stomach.radii[1] * rng.uniform(-0.1, 0.5))
    return _inside(stomach, "gas", 0.85, -950.0, level)


def _inside(organ: Organ, name: str, scale: float, hu: float, above: float | None) -> Organ:
    radii = organ.radii * scale
    return replace(organ, name=name, radii=radii, hu=hu, texture=3.0, limit=CAVITY - 0.05, above=above)


def _waves(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([rng.uniform(-2.2, 2.2, (3, 3)), rng.uniform(0, 2 * np.pi, (3, 1))], axis=1)


def _rotation(rng: np.random.Generator, degrees: float) -> np.ndarray:
    matrix = np.eye(3)
    for axis, angle in enumerate(np.deg2rad(rng.uniform(-degrees, degrees, 3))):
        i, j = (k for k in range(3) if k != axis)
        turn = np.eye(3)
        turn[i, i] = turn[j, j] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        matrix = matrix @ turn
    return matrix


def _axes(shape: tuple[int, int, int], anatomy: Anatomy) -> Axes:
    """Voxel centres along z, y, x in half fields of view."""
    z, y, x = (((np.arange(n) + 0.5) * 2 / n - 1).astype(np.float32) for n in shape)
    return (z if shape[0] > 1 else anatomy.spleen.centre[:1].astype(np.float32)), y, x


def _body_radius(axes: Axes, anatomy: Anatomy) -> tuple[np.ndarray, np.ndarray]:
    """Radius (H, W) as a share of the body's at mid height, and the factor on it of each slice (D,)."""
    z, y, x = axes
    v, u = y[:, None] / np.float32(anatomy.body[0]), x[None, :] / np.float32(anatomy.body[1])
    rho = np.sqrt(v * v + u * u)
    rho *= 1 + 0.03 * np.cos(2 * np.arctan2(v, u) + np.float32(anatomy.body_phase))
    return rho, 1 + 0.06 * z * z


def _paint_body(out: np.ndarray, rho: np.ndarray, axes: Axes, z: int, anatomy: Anatomy) -> None:
    """Air, skin fat, muscle ring, inner fat, ribs and spine of one slice (H, W)."""
    height, width = out.shape
    voxels = float(min(anatomy.body[0] * height, anatomy.body[1] * width)) / 2  # of the body's radius
    e = min(0.5 / voxels, 0.019)
    rings = (CAVITY, 0.88, 1.0)
    hu = (_INNER_FAT, anatomy.muscle_hu, _FAT, _AIR)
    knots = [r + d for r in rings for d in (-e, e)]
    out[:] = np.interp(rho, knots, [hu[0], hu[1], hu[1], hu[2], hu[2], hu[3]])
    level, y, x = float(axes[0][z]), axes[1][:, None], axes[2][None, :]
    if level > -0.3:
        ring = np.clip(0.5 + (0.025 - np.abs(rho - (CAVITY + 0.035))) * voxels, 0, 1)
        gap = np.cos(2 * np.pi * (level * 3.5 + 0.9 * y) + anatomy.rib_phase)
        ring *= np.clip((gap - 0.45) * 6, 0, 1) * np.clip((0.35 - y) * 12, 0, 1)
        out += ring * (np.float32(anatomy.bone_hu + 150) - out)
    back = -0.62 * float(anatomy.body[0])
    bone = anatomy.bone_hu if np.cos(2 * np.pi * level * 4.5 + anatomy.rib_phase) > -0.6 else 90.0
    for dy, ry, rx, value in ((0.0, 0.12, 0.14, bone), (-0.15, 0.07, 0.05, anatomy.bone_hu), (-0.12, 0.03, 0.04, 25.0)):
        radius = np.sqrt(((y - back - dy) / ry) ** 2 + (x / rx) ** 2)
        soft = np.clip(0.5 - (radius - 1) * (min(ry * height, rx * width) / 2), 0, 1)
        out += soft * (np.float32(value) - out)


def _paint_organ(
    image: np.ndarray,
    organ: Organ,
    axes: Axes,
    half_mm: np.ndarray,
    body: tuple[np.ndarray, np.ndarray],
    label: np.ndarray | None = None,
) -> None:
    """Blend one organ into the image (D, H, W) inside its bounding box, and mark it in `label`."""
    # Rotating in millimetres keeps the shape whatever the field of view; the ellipsoid itself scales with it.
    radii_mm = organ.radii * half_mm
    reach = np.sqrt(((organ.rotation * radii_mm) ** 2).sum(1)) / half_mm * _MARGIN
    box = tuple(slice(*np.searchsorted(a, (c - r, c + r))) for a, c, r in zip(axes, organ.centre, reach, strict=True))
    if any(s.start == s.stop for s in box):
        return
    to_ellipsoid = (organ.rotation.T * half_mm / radii_mm[:, None]).astype(np.float32)
    z, y, x = (a[s] - np.float32(c) for a, s, c in zip(axes, box, organ.centre, strict=True))
    p = [m[0] * z[:, None, None] + (m[1] * y[:, None] + m[2] * x) for m in to_ellipsoid]
    p[2] += np.float32(organ.bend) * (p[0] * p[0] - np.float32(0.4))
    waves = organ.waves.astype(np.float32)
    ripple = [np.sin(w[0] * p[0] + w[1] * p[1] + w[2] * p[2] + w[3]) for w in waves]
    r = np.zeros_like(p[0])
    for position, wave in zip(p, ripple, strict=True):
        r += np.square(position + np.float32(organ.wobble) * wave)
    np.sqrt(r, out=r)
    rho, scale = body[0][box[1:]], body[1][box[0]]
    np.maximum(r, rho * (scale / np.float32(organ.limit))[:, None, None], out=r)
    voxels = float(np.sqrt(np.prod(organ.radii[1:] * np.array(image.shape[1:]) / 2)))
    soft = np.clip(0.5 - (r - 1) * np.float32(voxels / 1.3), 0, 1)
    if organ.above is not None:
        front = (axes[1][box[1]] - organ.above) * image.shape[1] / 2
        soft *= np.clip(0.5 + front, 0, 1).astype(np.float32)[:, None]
    region = image[box]
    value = np.float32(organ.texture) * (ripple[0] + ripple[1])
    value += np.float32(organ.hu)
    value -= region
    value *= soft
    region += value
    if label is not None:
        # On a grid so coarse that no voxel centre lies inside, the nearest voxel keeps the class from vanishing.
        label[box][r <= max(np.float32(1), r.min())] = 1


def _finish(image: np.ndarray, rng: np.random.Generator, anatomy: Anatomy) -> np.ndarray:
    """Add smooth texture and correlated noise slice by slice, and round to int16."""
    depth, height, width = image.shape
    out = np.empty(image.shape, np.int16)
    coarse = rng.standard_normal((6, 10, 10), np.float32) * np.float32(7)
    planes = np.einsum("hj,djk,wk->dhw", _upsampling(height, 10), coarse, _upsampling(width, 10), optimize=True)
    across = _upsampling(depth, 6)
    # Each noise value is shared by neighbours in the slice (a 2 x 2 mean) and a little by the next slice.
    strength = np.float32(anatomy.noise_hu / (2 * np.hypot(1.0, 0.4)))
    before = np.zeros((height, width), np.float32)
    for z in range(depth):
        white = rng.standard_normal((height + 1, width + 1), np.float32)
        rows = white[1:] + white[:-1]
        noise = rows[:, 1:] + rows[:, :-1]
        low = int(across[z].argmax())
        texture = sum((across[z, k] * planes[k] for k in range(max(low - 1, 0), min(low + 2, 6))), np.float32(0))
        total = (noise + np.float32(0.4) * before) * strength + texture + image[z]
        out[z] = np.rint(np.clip(total, -1024, 3071, out=total))
        before = noise
    return out


def _upsampling(n: int, num_knots: int) -> np.ndarray:
    """(n, num_knots) weights of linear interpolation from evenly spaced knots."""
    place = np.linspace(0, num_knots - 1, n, dtype=np.float32)[:, None]
    return np.clip(1 - np.abs(place - np.arange(num_knots, dtype=np.float32)), 0, None)
