"""Batches of which some samples come from device memory and the rest from the host.

The host draws every sample and renders those whose cases the device does not hold; the device renders the others and
puts both together.
Shapes are those of the whole batch on both sides, so that the device's kernels are the same every step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hasten.cache.arena import Arena
from hasten.sample.dealt import Dealt
from hasten.sample.intensity import Intensity
from hasten.sample.program import Batch, BatchProgram, make_program
from hasten.sample.share import WHOLE, Share
from hasten.sample.types import BatchSpec, Draw


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedProgram:
    """`host_batches` on the host, by any thread; `merged` turns each into a batch on the device."""

    host: BatchProgram
    """Over the tables of all cases, in host memory or the file."""
    device: BatchProgram
    """Over the tables of the cases that the device holds."""
    position: Tensor
    """(N,) int64 on the host: where each case is in the device's tables, or -1."""

    @property
    def compiled(self) -> bool:
        return self.device.compiled

    @property
    def why(self) -> str:
        return self.device.why

    @property
    def compile_seconds(self) -> float:
        return self.device.compile_seconds

    def host_batches(self, first: int, last: int) -> Generator[tuple[Tensor, ...], None, None]:
        """The host's share of steps `first` ... `last` - 1, and what the device needs to know to do its own."""
        spec = self.host.spec
        patch = spec.sample.patch
        assert patch is not None
        for drawn in self.host.draws(first, last):
            size = drawn.case.shape[0]
            image = torch.zeros(size, spec.num_channels, *patch)
            label = torch.zeros(size, 1, *patch, dtype=torch.uint8)
            position = self.position[drawn.case]
            rows = torch.nonzero(position < 0)[:, 0]
            if rows.numel():
                with torch.no_grad():
                    own = self.host.render(spec, self.host.tables, _rows(drawn, rows))
                image[rows], label[rows] = own
            strength = (getattr(drawn.intensity, field.name) for field in fields(Intensity))
            yield image, label, position, drawn.key, drawn.start, drawn.matrix, *strength

    def merged(self, share: tuple[Tensor, ...]) -> Batch:
        """A batch from the host's share, once that is on the device."""
        image, label, position, key, start, matrix, *strength = share
        names = (field.name for field in fields(Intensity))
        drawn = Draw(
            case=position.clamp(min=0), key=key, start=start, matrix=matrix,
            intensity=Intensity(**dict(zip(names, strength, strict=True))),
        )  # fmt: skip
        with torch.no_grad():
            rendered = self.device.render(self.device.spec, self.device.tables, drawn)
            here = (position >= 0).view(-1, 1, 1, 1, 1)
            return torch.where(here, rendered[0], image), torch.where(here, rendered[1], label)


def make_mixed(
    spec: BatchSpec,
    arena: Arena,
    train_cases: tuple[int, ...] | Dealt,
    seed: int,
    *,
    compile: bool,
    share: Share = WHOLE,
) -> MixedProgram:
    """The program of an arena that the device holds a part of. `compile`: the device's half. As `make_program`."""
    assert arena.part is not None
    return MixedProgram(
        host=make_program(spec, arena.tables, train_cases, seed, compile=False, pages=arena.pages, share=share),
        # Of this one only the rendering is used: what it draws would be of the wrong cases.
        device=make_program(spec, arena.part.tables, (0,), seed, compile=compile, share=share),
        position=arena.part.position,
    )


def _rows(drawn: Draw, rows: Tensor) -> Draw:
    strength = {field.name: getattr(drawn.intensity, field.name)[rows] for field in fields(Intensity)}
    return Draw(
        case=drawn.case[rows], key=drawn.key[rows], start=drawn.start[rows], matrix=drawn.matrix[rows],
        intensity=Intensity(**strength),
    )  # fmt: skip
