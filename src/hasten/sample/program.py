"""The batch program: a batch as a pure function of (arena, seed, step).

Two halves. `draw` turns (seed, step) into a few numbers per sample; `render` turns those numbers and the arena into
voxels. They are apart because a compiler that sees both recomputes the draws for every voxel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.cache.arena import Tables
from hasten.config.schema import SampleConfig
from hasten.sample.crop import crop_start
from hasten.sample.gather import gather_image, gather_label
from hasten.sample.geometry import affine_matrix, source_coordinates
from hasten.sample.intensity import Intensity, augment_intensity, draw_intensity
from hasten.sample.order import cases_of
from hasten.sample.random import sample_key

log = logging.getLogger(__name__)

Render = Callable[["BatchSpec", Tables, "Draw"], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    """What is fixed for a run: everything that shapes the program."""

    sample: SampleConfig
    """With `patch` and `batch_size` set."""
    num_channels: int
    spatial_dims: int
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Voxel size (D, H, W) that rotations are made in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """What was drawn for each of B samples."""

    case: Tensor
    """(B,) int64 position in the arena."""
    key: Tensor
    """(B, 2) int64 words that further randomness (the noise) is keyed by."""
    start: Tensor
    """(B, 3) int64 first voxel of the patch in its case."""
    matrix: Tensor
    """(B, 3, 3) float32 from output to source offsets about the patch centre."""
    intensity: Intensity


def draw(spec: BatchSpec, tables: Tables, train_cases: Tensor, seed: Tensor, sample: Tensor) -> Draw:
    """The numbers of the given samples of the stream that `seed` names.

    train_cases: (n,) int64 positions in the arena; seed: () int64; sample: (B,) int64 global sample numbers in a row.
    """
    assert spec.sample.patch is not None
    case = train_cases[cases_of(seed, sample, train_cases.shape[0])]
    key = sample_key(seed, sample)
    return Draw(
        case=case,
        key=key,
        start=crop_start(tables, case, key, spec.sample.patch, spec.sample.foreground_prob),
        matrix=affine_matrix(key, spec.sample, spec.spacing, spec.spatial_dims),
        intensity=draw_intensity(key, spec.sample),
    )


def render(spec: BatchSpec, tables: Tables, drawn: Draw) -> tuple[Tensor, Tensor]:
    """Image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8. Shapes are static and the host reads no value."""
    assert spec.sample.patch is not None
    coordinates = source_coordinates(drawn.matrix, spec.sample.patch)
    image = gather_image(tables, drawn.case, drawn.start, coordinates, spec.num_channels, spec.spatial_dims)
    label = gather_label(tables, drawn.case, drawn.start, coordinates)
    return augment_intensity(image, drawn.key, drawn.intensity, spec.sample), label


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchProgram:
    """`program(step)` gives the batch of that step. Everything it reads lies on one device."""

    spec: BatchSpec
    tables: Tables
    train_cases: Tensor
    """(n,) int64 positions in the arena that are trained on."""
    seed: Tensor
    """() int64."""
    render: Render = render
    compiled: bool = False
    why: str = "not asked for"
    compile_seconds: float = 0.0

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Samples step * B ... step * B + B - 1: image (B, C, D, H, W) float32, label (B, 1, D, H, W) uint8."""
        size = self.spec.sample.batch_size
        assert size is not None
        with torch.no_grad():
            sample = torch.arange(step * size, step * size + size, device=self.seed.device)
            return self.render(
                self.spec, self.tables, draw(self.spec, self.tables, self.train_cases, self.seed, sample)
            )


def make_program(
    spec: BatchSpec, tables: Tables, train_cases: tuple[int, ...], seed: int, *, compile: bool
) -> BatchProgram:
    """The batch program on the device of `tables`. An absent or failing compiler leaves it eager, and `why` says so.

    train_cases: positions in the arena. The arena's length and number of cases are dynamic, so that one compiled
    kernel, which torch keeps on disk, serves every data set with the same patch and augmentation.
    """
    device = tables.image.device
    program = BatchProgram(
        spec=spec,
        tables=tables,
        train_cases=torch.tensor(train_cases, dtype=torch.int64, device=device),
        seed=torch.tensor(seed, dtype=torch.int64, device=device),
    )
    return _compile(program) if compile else program


def _compile(program: BatchProgram) -> BatchProgram:
    begin = time.perf_counter()
    tables = program.tables
    for tensor in (tables.image, tables.label, tables.offset, tables.shape):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    # The indices are clamped by construction, so inductor's bounds check on each would be work for nothing.
    options: dict[str, str | int | bool | Callable] = {"assert_indirect_indexing": False}
    parts = {name: getattr(program, name) for name in ("spec", "tables", "train_cases", "seed")}
    compiled = BatchProgram(**parts, render=torch.compile(render, fullgraph=True, dynamic=False, options=options))
    try:
        # Every program of the process compiles the same function; by default torch gives up at the ninth.
        with torch._dynamo.config.patch(recompile_limit=256):
            compiled(0)
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        log.warning("the batch program runs uncompiled: %s", reason)
        why, rendered = f"torch.compile failed: {reason}", program.render
    else:
        why, rendered = "", compiled.render
    seconds = time.perf_counter() - begin
    return BatchProgram(
        **parts, render=rendered, compiled=not why, why=why or f"compiled in {seconds:.1f} s", compile_seconds=seconds
    )
