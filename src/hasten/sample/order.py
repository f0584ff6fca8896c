"""Which case each sample is cut from: every case once an epoch, in an order that seed and epoch alone decide."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.sample.random import random_words, sample_key

_ORDER_STREAM = 0x0DE2


def case_order(seed: Tensor, epochs: Tensor, num_cases: int) -> Tensor:
    """(E, num_cases) int64: a permutation of the cases for each epoch number. epochs: (E,) int64."""
    key = sample_key(seed, epochs)
    return torch.argsort(random_words(key, _ORDER_STREAM, num_cases), dim=1, stable=True)


def cases_of(seed: Tensor, sample: Tensor, num_cases: int) -> Tensor:
    """(B,) int64 position in the list of training cases for each global sample number.

    sample: (B,) int64, consecutive. No sample is looked at on the host: as many epochs are shuffled as B samples can
    touch.
    """
    num_epochs = (sample.shape[0] - 1 + num_cases - 1) // num_cases + 1
    epoch, place = sample // num_cases, sample % num_cases
    first = epoch[0]
    order = case_order(seed, first + torch.arange(num_epochs, device=sample.device), num_cases)
    return order[epoch - first, place]
