"""The case that each sample is cut from: every case once an epoch, in an order that seed and epoch alone decide.

Training cases may be dealt into parts, so that a process needs only those of its own parts. Each slot of a batch then
draws from one part, in that part's own order. A sample depends on the number of parts and the seed, not on how many
processes share the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share

CaseOrder = Callable[[Tensor], Tensor]
"""(N * B,) int64 sample numbers of whole batches in a row -> (N * B / ranks,) int64 position of the case of each sample
of this rank's share."""

_ORDER_STREAM = 0x0DE2
_PART_STREAM = 0x9A47
_MOST_PARTS = 2**20


def case_order(seed: Tensor, epochs: Tensor, num_cases: int) -> Tensor:
    """(E, num_cases) int64: a permutation of the cases for each epoch number. epochs: (E,) int64."""
    key = sample_key(seed, epochs)
    return torch.argsort(random_words(key, _ORDER_STREAM, num_cases), dim=1, stable=True)


def cases_of(seed: Tensor, sample: Tensor, num_cases: int) -> Tensor:
    """(B,) int64 position in the list of training cases for each global sample number.

    sample: (B,) int64, consecutive. The host reads no value: as many epochs are shuffled as B samples can
    span.
    """
    num_epochs = (sample.shape[0] - 1 + num_cases - 1) // num_cases + 1
    epoch, place = sample // num_cases, sample % num_cases
    first = epoch[0]
    order = case_order(seed, first + torch.arange(num_epochs, device=sample.device), num_cases)
    return order[epoch - first, place]


def repeated_cases_of(seed: Tensor, sample: Tensor, num_cases: int, repeats: int) -> Tensor:
    """(B,) int64 like `cases_of`, where `repeats` samples in a row come from one case.

    sample: (B,) int64, consecutive.
    """
    if repeats == 1:
        return cases_of(seed, sample, num_cases)
    # As many cases are looked up as the samples can touch, and repeated.
    item = torch.div(sample, repeats, rounding_mode="floor")
    items = item[0] + torch.arange(sample.shape[0] // repeats + 2, device=sample.device)
    return cases_of(seed, items, num_cases)[item - item[0]]


def epoch_order(
    sample: Tensor, *, cases: Tensor, seed: Tensor, share: Share, batch_size: int, repeats: int = 1
) -> Tensor:
    """A `CaseOrder`, given all but the sample numbers: every case once an epoch.

    cases: (n,) int64 positions; seed: () int64. repeats: samples in a row that come from one case.
    """
    return share.cut(cases[repeated_cases_of(seed, sample, cases.shape[0], repeats)], batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """P parts of the training cases. A piece of a batch has equally many slots of each part, one part after another."""

    parts: tuple[tuple[int, ...], ...]
    """Positions in the arena, by part. Those of other ranks' parts are not read and may be empty."""
    round: int = 0
    """Number of redistributions so far."""
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
