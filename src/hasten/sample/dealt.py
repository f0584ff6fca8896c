"""Training cases dealt into parts, so that a process needs only those of its own parts.

Each slot of a batch draws from one part, in that part's own order. A sample depends on the number of parts and the
seed, not on how many processes share the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.sample.order import CaseOrder, repeated_cases_of
from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share

_PART_STREAM = 0x9A47
_MOST_PARTS = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """P parts of the training cases. A piece of a batch has equally many slots of each part, one part after another."""

    parts: tuple[tuple[int, ...], ...]
    """Positions in the arena, by part. Those of other ranks' parts are not read and may be empty."""
    round: int = 0
    """How often the cases were redealt before."""
    begun: int = 0
    """Samples that each part gave in earlier rounds."""


def part_order(dealt: Dealt, *, seed: Tensor, share: Share, batch_size: int, repeats: int = 1) -> CaseOrder:
    """The order of the cases of one rank's parts. seed: () int64 of the run, on the device to draw on.

    repeats: samples in a row of a part that come from one case.
    """
    total = len(dealt.parts)
    assert total % share.size == 0
    assert total <= _MOST_PARTS
    parts = share.parts(total)
    assert all(dealt.parts[part] for part in parts)
    numbers = torch.tensor([dealt.round * _MOST_PARTS + part for part in parts], dtype=torch.int64, device=seed.device)
    words = random_words(sample_key(seed, numbers), _PART_STREAM, 2)
    seeds = words[:, 0] + ((words[:, 1] >> 1) << 32)
    cases = [torch.tensor(dealt.parts[part], dtype=torch.int64, device=seed.device) for part in parts]
    each = batch_size // total

    def order(sample: Tensor) -> Tensor:
        steps = sample.shape[0] // batch_size
        number = torch.arange(steps * each, device=sample.device)
        number = number + (torch.div(sample[0], total, rounding_mode="floor") - dealt.begun)
        drawn = [
            part[repeated_cases_of(seed_of_part, number, part.shape[0], repeats)].view(steps, share.pieces, -1)
            for part, seed_of_part in zip(cases, seeds.unbind(), strict=True)
        ]
        return torch.stack(drawn, dim=2).flatten()

    return order
