"""Which case each sample is cut from: every case once an epoch, in an order that seed and epoch alone decide."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share

CaseOrder = Callable[[Tensor], Tensor]
"""(N * B,) int64 sample numbers of whole batches in a row -> (N * B / ranks,) int64 position of the case of each sample
of this rank's share."""

_ORDER_STREAM = 0x0DE2


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
    """As `cases_of`, where `repeats` samples in a row come from one case."""
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
