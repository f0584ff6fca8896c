"""Training cases dealt into parts, so that a process needs only those of its own parts.

Each slot of a batch draws from one part, in an order of that part's own. What a sample shows is decided by the number
of parts and the seed; how many processes share the parts changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.sample.order import cases_of
from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share

_PART_STREAM = 0x9A47
_MOST_PARTS = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """P parts of the training cases. A piece of a batch has equally many slots of each part, one part after another."""

    parts: tuple[tuple[int, ...], ...]
    """Of each part, positions in the arena. Those of other ranks' parts are not looked at and may be left empty."""
    round: int = 0
    """How often the cases were dealt anew before."""
    begun: int = 0
    """Samples that each part gave in earlier rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartOrders:
    """The parts that one rank draws from, on the device that samples are drawn on."""

    cases: tuple[Tensor, ...]
    """(n,) int64 positions in the arena, of each of these parts."""
    seeds: tuple[Tensor, ...]
    """() int64: what the order of each of them is drawn with."""
    num_parts: int
    """Of all ranks."""
    begun: int

    def cases_of(self, sample: Tensor, batch_size: int, pieces: int) -> Tensor:
        """(N * own slots,) int64 positions, as `Share.cut` orders them. sample: (N * batch_size,) of whole batches."""
        steps, each = sample.shape[0] // batch_size, batch_size // self.num_parts
        number = torch.arange(steps * each, device=sample.device)
        number = number + (torch.div(sample[0], self.num_parts, rounding_mode="floor") - self.begun)
        found = [
            cases[cases_of(seed, number, cases.shape[0])].view(steps, pieces, -1)
            for cases, seed in zip(self.cases, self.seeds, strict=True)
        ]
        return torch.stack(found, dim=2).flatten()


def part_orders(dealt: Dealt, seed: Tensor, share: Share) -> PartOrders:
    """The parts of one rank. seed: () int64 of the run, on the device to draw on."""
    total = len(dealt.parts)
    assert total % share.size == 0
    assert total <= _MOST_PARTS
    own = share.parts(total)
    assert all(dealt.parts[part] for part in own)
    numbers = torch.tensor([dealt.round * _MOST_PARTS + part for part in own], dtype=torch.int64, device=seed.device)
    words = random_words(sample_key(seed, numbers), _PART_STREAM, 2)
    seeds = words[:, 0] + ((words[:, 1] >> 1) << 32)
    return PartOrders(
        cases=tuple(torch.tensor(dealt.parts[part], dtype=torch.int64, device=seed.device) for part in own),
        seeds=tuple(seeds.unbind()),
        num_parts=total,
        begun=dealt.begun,
    )
