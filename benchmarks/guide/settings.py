"""The process-wide settings that a measurement may change, put back after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

_CUDNN = ("enabled", "benchmark", "deterministic", "allow_tf32")


@contextmanager
def settings_kept() -> Iterator[None]:
    """Threads, torch's global flags and the random states are afterwards what they were, also after an error."""
    with ExitStack() as later:
        for put_back, value in _settings():
            later.callback(put_back, value)
        yield


def _settings() -> list[tuple[Any, Any]]:
    cudnn = torch.backends.cudnn
    kept: list[tuple[Any, Any]] = [
        (torch.set_num_threads, torch.get_num_threads()),
        (torch.set_grad_enabled, torch.is_grad_enabled()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        (torch.autograd.set_detect_anomaly, torch.is_anomaly_enabled()),
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002
        (random.setstate, random.getstate()),
    ]
    kept += [(lambda value, name=name: setattr(cudnn, name, value), getattr(cudnn, name)) for name in _CUDNN]
    if torch.cuda.is_available():
        kept.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return kept
