"""The abdomen of a phantom: organs as deformed ellipsoids, drawn at random for each case.

Places and sizes are in units of half the field of view, axes (z, y, x): z up to the head, y to the front, x to the
right, so the spleen lies at negative x, negative y (back) and positive z. Intensities are in HU, those of abdominal CT:
spleen, liver, kidney, muscle and bowel overlap on purpose, so that place and shape must be learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

SPLEEN = "spleen"
CAVITY = 0.80
"""Radius of the abdominal cavity, as a share of the body's."""


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
    shift_hu: float
    """Contrast shift of the whole case."""
    noise_hu: float
    """Standard deviation of the CT noise."""
    organs: tuple[Organ, ...]

    @property
    def spleen(self) -> Organ:
        return self.organs[-1]


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
        shift_hu=shift,
        noise_hu=float(rng.uniform(20, 30)),
        organs=tuple(organs),
    )


def _spleen(rng: np.random.Generator, hu: float) -> Organ:
    centre = np.array([rng.uniform(0.18, 0.42), rng.uniform(-0.24, -0.06), rng.uniform(-0.55, -0.44)])
    radii = np.array([rng.uniform(0.28, 0.38), rng.uniform(0.20, 0.28), rng.uniform(0.14, 0.20)])
    touches_wall = rng.random() < 0.5
    return Organ(
        name=SPLEEN,
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
